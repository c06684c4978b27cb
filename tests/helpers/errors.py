"""Errors as users see them, and what failures leave behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specdec_ref.errors import CheckpointError


def error_of(call: Callable[[], object]) -> str:
    """The message of the `CheckpointError` that the call must raise, which must be one line."""
    with pytest.raises(CheckpointError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def leftovers(home: Path) -> list[str]:
    """Everything in the cache but finished results and the lock."""
    return sorted(
        str(path.relative_to(home))
        for path in home.rglob("*")
        if path.name.startswith(".") and path.name != ".lock"
    )
