"""`specdec bench quant` and `specdec quantize` as users run them, on the nano pair."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specdec_ref.bench.quant import Settings, run_quant
from specdec_ref.cli import quantize
from specdec_ref.errors import CheckpointError, SpecdecError, UsageError
from specdec_ref.prompts import load_prompts
from specdec_ref.quantization.file import QuantizedFile

GRID_KEYS = {
    "draft_bits", "target_bits", "scheme", "group", "file_bytes", "resident_bytes", "perplexity", "kl", "alpha",
    "tau_greedy_k4", "tau_t1_k4", "predicted_speedup",
}  # fmt: skip


def specdec(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specdec_ref.cli", *args],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    settings = Settings(
        "nano-target", "nano-draft", (3, 16), (4, 8), per_class=1, new_tokens=24, held_out=3, studies=False
    )
    return run_quant(load_prompts(), settings)


def test_the_grid_holds_what_others_read(report: dict[str, Any]) -> None:
    assert report["degridded"] is True
    assert [(row["draft_bits"], row["target_bits"]) for row in report["grid"]] == [
        (3, 4),
        (16, 4),
        (3, 8),
        (16, 8),
    ]
    for row in report["grid"]:
        assert set(row) >= GRID_KEYS
        assert row["predicted_speedup"] is None
        assert row["file_bytes"] == row["draft_file_bytes"] + row["target_file_bytes"] > row["resident_bytes"]
        assert 1 <= row["tau_t1_k4"] <= 5 and 1 <= row["tau_greedy_k4"] <= 5
        assert len(row["alpha"]) <= 4 and all(0 <= a <= 1 for a in row["alpha"])


def test_more_bits_are_closer_to_the_model_and_take_more_room(report: dict[str, Any]) -> None:
    four, eight = report["targets"]
    assert 0 < eight["kl"] < 0.1 * four["kl"] and eight["file_bytes"] > four["file_bytes"]
    three, half = report["drafts"]
    assert three["kl"] > 0.1 > half["kl"] and three["resident_bytes"] < half["resident_bytes"]
    assert report["full_precision"]["perplexity"] == pytest.approx(eight["perplexity"], rel=0.05)


def test_the_computed_acceptance_is_that_of_the_real_loop(report: dict[str, Any]) -> None:
    found = report["validation"]
    assert found["texts_identical"] == found["prompts"]
    assert found["tau_real"] == found["tau_computed"]


def test_quantize_then_generate_with_the_files(tmp_path: Path) -> None:
    done = specdec(
        "quantize", "--model", "nano-target", "--scheme", "awq", "--bits", "6", "--out", str(tmp_path / "target"),
        "--json", str(tmp_path / "target.json"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (
        json.loads((tmp_path / "target.json").read_text())["file_bytes"]
        == (tmp_path / "target").stat().st_size
    )
    quantize.run(model="nano-draft", scheme="rtn", bits=4, out=tmp_path / "draft")
    assert str(QuantizedFile(tmp_path / "target").recipe) == "awq int6-g32-sym"
    base = ["generate", "--prompt", "Tell me about a cat.", "--max-new-tokens", "16"]
    files = ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft")]
    named = ["--target", "nano-target", "--target-precision", str(tmp_path / "target"), "--draft", "none"]
    spoken, plain = specdec(*base, *files), specdec(*base, *named)
    assert spoken.returncode == plain.returncode == 0, spoken.stderr + plain.stderr
    assert spoken.stdout == plain.stdout != ""


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"bits": 1}, UsageError, "cannot quantize to 1 bits"),
        ({"bits": 9}, UsageError, "cannot quantize to 9 bits"),
        ({"group": "0"}, UsageError, "--group takes a number of weights or channel"),
        ({"group": "64"}, UsageError, "group 64 does not divide a row of 96 weights"),
        ({"scheme": "magic"}, UsageError, "unknown scheme 'magic'"),
        ({"calibration": Path("/no/such/file")}, UsageError, "/no/such/file: cannot be read"),
        ({"model": "nobody"}, CheckpointError, "no such model"),
        ({"out": None}, UsageError, "say where to write with --out"),
        ({"out": Path("/")}, UsageError, "is a folder"),
    ],
)
def test_bad_use_of_quantize_is_one_clear_error(
    tmp_path: Path, changes: dict[str, Any], kind: type[SpecdecError], says: str
) -> None:
    options: dict[str, Any] = {"model": "nano-target", "out": tmp_path / "q.safetensors"}
    with pytest.raises(kind) as caught:
        quantize.run(**(options | changes))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
