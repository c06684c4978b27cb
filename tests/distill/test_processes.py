"""Two processes that talk over gloo: the same data, and one set of weights between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specdec_ref.distill.shards import read_manifest
from tests.helpers.distill import losses

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of 12 steps that two processes made."""
    out = tmp_path_factory.mktemp("two")
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "-m",
        "tests.helpers.distill",
    ]
    done = subprocess.run(
        [sys.executable, *launch, str(out)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_two_processes_write_the_bytes_of_one(two: Path, finished: Path) -> None:
    assert json.loads((two / "log_data.jsonl").read_text().splitlines()[0])["processes"] == 2
    assert read_manifest(two / "data")["shards"] == read_manifest(finished / "data")["shards"]


def test_two_processes_train_as_one_does_and_agree_on_the_weights(two: Path, finished: Path) -> None:
    assert json.loads((two / "train.json").read_text())["processes"] == 2
    first, second = (json.loads((two / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    # Before the first update both runs have the same weights and, between them, the same rows.
    (_, ours), (_, theirs) = losses(two)[0], losses(finished)[0]
    assert ours == pytest.approx(theirs, rel=0.03), "each process normalises by its own tokens"
    assert losses(two)[-1][1] < 0.8 * ours


def test_weights_that_went_astray_are_noticed_by_every_process(two: Path) -> None:
    for rank in (0, 1):
        assert "weights differ" in json.loads((two / f"rank{rank}.json").read_text())["complaint"]
