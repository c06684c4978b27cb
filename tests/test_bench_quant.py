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
from specdec_ref.decoding import autoregressive
from specdec_ref.errors import CheckpointError, SpecdecError, UsageError
from specdec_ref.pair import load_pair
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


def test_quantize_then_generate_with_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    big, small, record = tmp_path / "target", tmp_path / "draft", tmp_path / "target.json"
    quantize.run(model="nano-target", scheme="awq", bits=6, out=big, json=record)
    assert "awq int6-g32-sym" in capsys.readouterr().out
    assert json.loads(record.read_text())["file_bytes"] == big.stat().st_size == QuantizedFile(big).nbytes
    quantize.run(model="nano-draft", scheme="rtn", bits=4, out=small)
    prompt = ["--prompt", "Tell me about a cat.", "--max-new-tokens", "16"]
    # The target as a precision, the draft as a model: both forms of the option.
    done = specdec(
        "generate", *prompt, "--target", "nano-target", "--target-precision", str(big), "--draft", str(small)
    )
    assert done.returncode == 0, done.stderr
    pair = load_pair(big, "none")
    plain = autoregressive(pair.target, pair.prompt_ids(prompt[1]), max_new_tokens=16, eos_ids=pair.eos_ids)
    assert done.stdout.strip() == pair.tokenizer.decode(plain.tokens, skip_special=True).strip() != ""


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
