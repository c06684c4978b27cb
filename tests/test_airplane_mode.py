"""After the first fetch nothing needs a network: every command runs with sockets that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_ref.checkpoints import LoadedModel

pytestmark = pytest.mark.slow

NO_NETWORK = """
import socket

def refuse(*args, **kwargs):
    raise OSError("airplane mode")

socket.socket.connect = socket.socket.connect_ex = refuse
socket.create_connection = socket.getaddrinfo = refuse
"""


def run(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    env.pop("HF_HUB_OFFLINE", None)  # a user on a plane has not set it
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=280, check=False
    )


def test_the_block_works(tmp_path: Path) -> None:
    result = run(tmp_path, "-c", "import socket; socket.create_connection(('127.0.0.1', 9))")
    assert "airplane mode" in result.stderr


def test_generation_runs_in_airplane_mode(smollm2: LoadedModel, tmp_path: Path) -> None:
    result = run(
        tmp_path, "-m", "specdec_ref.cli", "generate", "--prompt", "Name a colour.", "--max-new-tokens", "4"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_fetching_again_needs_no_network(smollm2: LoadedModel, tmp_path: Path) -> None:
    result = run(tmp_path, "-m", "specdec_ref.cli", "fetch")
    assert result.returncode == 0, result.stderr
