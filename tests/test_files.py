"""Atomic writing: the old result or the new one, never half of either."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from specdec_ref import files, paths
from specdec_ref.errors import CheckpointError, SpecdecError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with files.atomic_file(path) as part:
        part.write_text("content")
        assert part.parent == path.parent and not path.exists()
    assert path.read_text() == "content"
    assert names(path.parent) == ["file"]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), files.atomic_file(path) as part:
        part.write_text("half")
        _ = 1 / 0
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_folder_replaces_a_folder_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("1")
    with files.atomic_folder(path) as part:
        (part / "deep").mkdir()
        (part / "deep" / "new").write_text("2")
    assert names(path) == ["deep"] and names(tmp_path) == ["folder"]
    with pytest.raises(KeyboardInterrupt), files.atomic_folder(path) as part:
        (part / "half").write_text("3")
        raise KeyboardInterrupt
    assert names(path) == ["deep"] and names(tmp_path) == ["folder"]


def test_a_failed_rename_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("1")
    rename = Path.rename

    def fails_for_the_new_one(self: Path, target: Path) -> Path:
        if target == path and (self / "new").exists():
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_for_the_new_one)
    with pytest.raises(OSError, match="Input/output"), files.atomic_folder(path) as part:
        (part / "new").write_text("2")
    assert names(path) == ["old"] and names(tmp_path) == ["folder"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_names_folder_and_bytes(tmp_path: Path, number: int) -> None:
    with pytest.raises(CheckpointError) as error, files.atomic_file(tmp_path / "file", needs=1234567) as part:
        part.write_text("half")
        raise OSError(number, os.strerror(number))
    assert str(error.value).startswith(f"{tmp_path}: disk full (1,234,567 bytes are needed, ")
    assert "\n" not in str(error.value)
    assert names(tmp_path) == []


def test_too_little_space_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("usage", (), {"free": 99})())
    complaint = r"disk full \(100 bytes are needed, 99 are free\)"
    with pytest.raises(CheckpointError, match=complaint), files.atomic_file(tmp_path / "file", needs=100):
        raise AssertionError("nothing may be written")


def test_errors_that_concern_another_place_pass_through(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), files.atomic_file(tmp_path / "file"):
        raise PermissionError(errno.EACCES, "Permission denied", "/some/source")
    with pytest.raises(CheckpointError, match="cannot be written"), files.atomic_file(tmp_path / "file"):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "x"))


def test_sweep_removes_what_killed_processes_left(tmp_path: Path) -> None:
    path = tmp_path / "model"
    files.temporary(path).write_text("half")
    files.temporary(path).mkdir()
    kept = files.temporary(tmp_path / "other")
    kept.write_text("another result's")
    files.sweep(path)
    assert names(tmp_path) == [kept.name]


def test_the_lock_excludes_others_and_says_when_it_waits(tmp_path: Path) -> None:
    path = tmp_path / "deep" / ".lock"
    with files.lock(path), path.open("a") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    waited: list[str] = []
    holder = path.open("a")
    fcntl.flock(holder, fcntl.LOCK_EX)

    def free() -> None:
        waited.append("waiting")
        holder.close()

    with files.lock(path, waiting=free):
        assert waited == ["waiting"]


def test_sha256_reports_every_byte(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    seen: list[int] = []
    assert files.sha256(tmp_path / "file", seen.append) == hashlib.sha256(content).hexdigest()
    assert sum(seen) == len(content) and len(seen) > 1


@pytest.mark.parametrize(
    ("content", "complaint"), [(None, "the file is missing"), ("{", "as JSON"), ("[1]", "no JSON object")]
)
def test_json_objects_are_read_or_clearly_refused(tmp_path: Path, content: Any, complaint: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=complaint):
        files.read_json(path)


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDEC_HOME", "~/kit")
    assert paths.home() == Path.home() / "kit"
    monkeypatch.delenv("SPECDEC_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.home().name == "specdec"


def test_assets_are_beside_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert (paths.assets() / "models").is_dir()
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "site-packages" / "specdec_ref" / "paths.py"))
    with pytest.raises(SpecdecError, match="assets are not beside the package"):
        paths.assets()
