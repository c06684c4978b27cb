"""Progress: a bar on a terminal (also one that does not tell its size), a line elsewhere, nothing when asked."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from specdec_ref.checkpoints.progress import Progress


def test_a_terminal_shows_a_bar_that_ends_full(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Progress("downloading x", 1000) as progress:
            progress.reach(400)
            progress.reach(300)
        terminal.flush()
        shown = os.read(reader, 100_000).decode()
    os.close(reader)
    assert "downloading x:   0%" in shown and "downloading x: 100%" in shown and "1.00k/1.00k" in shown


def test_elsewhere_one_line_says_what_and_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("downloading x", 93_000_000) as progress:
        progress.add(5)
    assert capsys.readouterr() == ("", "downloading x (93 MB)\n")


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("downloading x", 1000, quiet=True) as progress:
        progress.add(5)
    assert capsys.readouterr() == ("", "")
