"""Writing files so that a crash, a kill or a full disk never leaves half of one under its final name.

Everything is first written under a temporary name in the same folder (so that the last step is a rename within one file
system, which is atomic), flushed to the disk, and only then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from specdec_ref.errors import CheckpointError

_SUFFIX = ".part"
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_CHUNK = 1 << 20


def temporary(path: Path) -> Path:
    """A fresh temporary name for `path`: in the same folder, hidden, and recognised by `sweep`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}")


def sweep(path: Path) -> None:
    """Remove what killed processes left of `path`. Call it with the `lock` held, or it may remove work in progress."""
    for stale in path.parent.glob(f".{path.name}.*{_SUFFIX}"):
        remove(stale)


def remove(path: Path) -> None:
    """Delete a file or folder; nothing happens if it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_file(path: Path, *, needs: int = 0) -> Iterator[Path]:
    """Yield a temporary path to write to; it becomes `path` when the block ends without an exception.

    Args:
        path: the final name. What is there now stays until the new file is complete, and for good if the block fails.
        needs: bytes about to be written, checked against the free space first and named if the disk fills up.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    with storage_errors(path.parent, needs=needs):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_space(path.parent, needs)
        part = temporary(path)
        try:
            yield part
            _flush(part)
            os.replace(part, path)
            _flush(path.parent)
        finally:
            remove(part)


@contextlib.contextmanager
def atomic_folder(path: Path, *, needs: int = 0) -> Iterator[Path]:
    """Like `atomic_file` for a whole folder: yield an empty temporary one, which becomes `path` at the end.

    A folder cannot be renamed over another, so an existing `path` is moved aside for the instant between two renames.
    """
    path = Path(path)
    with storage_errors(path.parent, needs=needs):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_space(path.parent, needs)
        part, aside = temporary(path), temporary(path)
        try:
            part.mkdir()
            yield part
            for entry in [*part.rglob("*"), part]:
                _flush(entry)
            if path.exists():
                path.rename(aside)
            try:
                part.rename(path)
            except BaseException:
                if aside.exists():
                    aside.rename(path)
                raise
            _flush(path.parent)
        finally:
            remove(part)
            remove(aside)


@contextlib.contextmanager
def lock(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold an exclusive lock between processes for the block. The system frees it however the holder dies.

    Args:
        path: the lock's own file, created if need be and left behind.
        waiting: called once if another process holds the lock, before waiting for it.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def storage_errors(folder: Path, *, needs: int = 0) -> Iterator[None]:
    """Turn "disk full" and "cannot be written" from anything in the block into one clear error about `folder`.

    Libraries that write for us hide the system's error number in a message of their own, so messages are read as well.
    """
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(folder, needs) from error
        elsewhere = error.filename is not None and not str(error.filename).startswith(str(_existing(folder)))
        if error.errno in _UNWRITABLE and not elsewhere:
            raise CheckpointError(
                f"the folder cannot be written: {error.strerror}",
                where=str(folder),
                fix="correct its permissions, or choose another cache folder with SPECDEC_HOME",
            ) from error
        raise
    except Exception as error:
        if mentions_full_disk(str(error)):
            raise disk_full(folder, needs) from error
        raise


def mentions_full_disk(message: str) -> bool:
    """Whether another program's or library's message says that the disk is full."""
    return any(
        sign in message for sign in ("os error 28", "StorageFull", "No space left on device", "Errno 28")
    )


def disk_full(folder: Path, needs: int) -> CheckpointError:
    """The error for a full disk: names the folder, the bytes it needs and the bytes it has."""
    free = shutil.disk_usage(_existing(folder)).free
    wanted = f"{needs:,} bytes are needed, {free:,} are free" if needs else f"{free:,} bytes are free"
    return CheckpointError(
        f"disk full ({wanted})",
        where=str(folder),
        fix="free some space, or choose another disk with SPECDEC_HOME",
    )


def sha256(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return the SHA-256 of a file in hexadecimal, calling `progress(bytes)` for every part read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            if progress is not None:
                progress(len(chunk))
    return digest.hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        CheckpointError: the file is missing, unreadable, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError("the file is missing", where=str(path), fix="is the folder complete?") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"cannot be read as JSON: {error}", where=str(path), fix="take a sound copy"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError("holds no JSON object", where=str(path), fix="take a sound copy")
    return value


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def check_space(folder: Path, needs: int) -> None:
    """Raise the error for a full disk now rather than after minutes of download, if `needs` bytes cannot fit."""
    if needs and shutil.disk_usage(_existing(folder)).free < needs:
        raise disk_full(folder, needs)


def _flush(path: Path) -> None:
    # A rename survives a power cut only if the data reached the disk before it, and the folder's new entry after it.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
