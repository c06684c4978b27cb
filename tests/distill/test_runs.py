"""A run from nothing to exported drafts, killed and continued, made again, and given bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdec_ref import checkpoints
from specdec_ref.distill.config import load_config
from specdec_ref.distill.data import make_data
from specdec_ref.distill.evaluate import Job, choose_prompts, evaluate, measure, summarise
from specdec_ref.distill.export import draft_from, draft_tensors, trained_drafts
from specdec_ref.distill.shards import read_manifest, shard_path
from specdec_ref.distill.students import new_draft
from specdec_ref.distill.target import load_target, random_decoder
from specdec_ref.distill.texts import Texts
from specdec_ref.distill.train import train
from specdec_ref.errors import CheckpointError, SpecdecError, UsageError
from tests.helpers.distill import SETTINGS, losses, short_smoke


def test_every_draft_learns(finished: Path) -> None:
    trace = [loss for _, loss in losses(finished)]
    assert len(trace) == 60
    assert sum(trace[-5:]) < 0.3 * sum(trace[:5])
    summary = json.loads((finished / "train.json").read_text())
    assert summary["finished"] and summary["steps"] == 60
    start = json.loads((finished / "log_train.jsonl").read_text().splitlines()[1])
    for name, figures in summary["held_out"].items():
        assert figures["alpha"] > 3 * start[name]["alpha"]


def test_training_raises_acceptance_well_above_the_untrained_draft(finished: Path) -> None:
    config, target = short_smoke(), load_target("random")
    texts = Texts.load(finished / "texts.json")
    prompts = choose_prompts(texts.prompts, config.eval.prompts_per_class)
    order = torch.load(finished / "checkpoint.pt", weights_only=True)["order"]
    evaluated = json.loads((finished / "eval.json").read_text())
    for index, shape in enumerate(config.drafts):
        fresh = new_draft(shape, target.embed, order, config.seed * 101 + index)
        model = shape.model(target.config.vocab_size)
        untrained = draft_from(draft_tensors(dict(fresh.named_parameters()), model, order), model)
        for temperature, key in ((0.0, "tau_greedy_k4"), (1.0, "tau_t1_k4")):
            rounds = measure(
                target, untrained, prompts, Job("x", 4, temperature), config.eval, [texts.end_of_turn], 0
            )
            before = summarise(prompts, rounds, 10, 0)["tau"]
            after = evaluated["drafts"][index][key]
            assert after - 1 > 4 * (before - 1) + 0.3, (
                f"{shape.name} at T = {temperature}: {before:.2f} -> {after:.2f}"
            )


def test_exported_drafts_load_and_are_the_trained_averages(finished: Path) -> None:
    ids = torch.arange(8, 24)
    for _, (shape, config, tensors) in trained_drafts(finished).items():
        folder = finished / "models" / f"draft-{shape.width}x{shape.layers}"
        loaded = checkpoints.load(folder)
        assert torch.equal(loaded.model(ids), draft_from(tensors, config)(ids))
        assert loaded.specdec["head_rows"] == shape.head_rows
        assert "tau is tokens per target pass" in (folder / "README.md").read_text()


def test_a_run_made_again_from_its_recorded_settings_has_the_same_losses(
    finished: Path, tmp_path: Path
) -> None:
    recorded = json.loads((finished / "train.json").read_text())["config"]
    again = load_config("smoke", {k: recorded[k] for k in ("seed", "data", "drafts", "train", "eval")})
    make_data(again, tmp_path)
    train(again, tmp_path)
    assert read_manifest(tmp_path / "data") == read_manifest(finished / "data")
    first, second = losses(finished), losses(tmp_path)
    assert [step for step, _ in second] == [step for step, _ in first]
    assert [loss for _, loss in second] == pytest.approx([loss for _, loss in first], abs=1e-6)


def killed(stage: str, out: Path, when: Callable[[], bool]) -> None:
    """Start a stage and kill it, as the system would, when `when` says so; it must not have finished."""
    command = [sys.executable, "-m", "specdec_ref.distill", stage, "--config", "smoke", "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--set", json.dumps(SETTINGS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not when():
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    if process.stderr:
        process.stderr.close()


@pytest.mark.slow
def test_data_killed_in_the_middle_is_finished_with_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    killed("data", tmp_path, lambda: shard_path(tmp_path / "data", 1).exists())
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").glob("shard-*")}
    assert 2 <= len(written) < 6
    make_data(short_smoke(), tmp_path)
    assert all(path.stat().st_mtime_ns == then for path, then in written.items()), "nothing is made twice"
    for index in range(6):
        ours, theirs = (shard_path(folder / "data", index) for folder in (tmp_path, finished))
        assert ours.read_bytes() == theirs.read_bytes()
    assert read_manifest(tmp_path / "data") == read_manifest(finished / "data")


@pytest.mark.slow
def test_training_killed_in_the_middle_goes_on_as_if_it_had_not_been(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "data", tmp_path / "data")
    log = tmp_path / "log_train.jsonl"
    killed("train", tmp_path, lambda: log.exists() and '"step": 25,' in log.read_text())
    train(short_smoke(), tmp_path)
    unbroken = dict(losses(finished))
    trace = losses(tmp_path)
    steps = [step for step, _ in trace]
    assert steps[-1] == 60 and set(steps) == set(unbroken)
    resumed = json.loads(next(line for line in log.read_text().splitlines() if '"resumed"' in line))
    assert resumed["step"] >= 20
    assert steps.count(resumed["step"]) == 1, "nothing before the checkpoint is trained again"
    for step, loss in trace:
        assert loss == pytest.approx(unbroken[step], abs=1e-6), f"step {step}"
    for name, (_, _, tensors) in trained_drafts(tmp_path).items():
        expected = trained_drafts(finished)[name][2]
        assert all(torch.equal(tensors[key], expected[key]) for key in expected)


def test_a_finished_run_is_left_as_it_is(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    before = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    assert train(short_smoke(), tmp_path / "run")["steps"] == 60
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run to spoil."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def complaint(error: type[SpecdecError], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_stages_out_of_order_say_which_comes_first(tmp_path: Path) -> None:
    assert "run the `data` stage first" in complaint(CheckpointError, lambda: train(short_smoke(), tmp_path))
    assert "run the `train` stage first" in complaint(
        CheckpointError, lambda: evaluate(short_smoke(), tmp_path)
    )
    assert "run the `train` stage first" in complaint(CheckpointError, lambda: trained_drafts(tmp_path))


@pytest.mark.parametrize("cut", [0, 7, 900])
def test_a_corrupt_shard_is_named(copy: Path, cut: int) -> None:
    path = shard_path(copy / "data", 3)
    path.write_bytes(path.read_bytes()[:cut])
    for stage in (train, make_data):
        message = complaint(CheckpointError, lambda stage=stage: stage(short_smoke(), copy))
        assert message.startswith(f"{path}: the shard is damaged") and "run `data` again" in message
    path.unlink()
    make_data(short_smoke(), copy)  # what the message advises


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None])
def test_a_damaged_checkpoint_is_named(copy: Path, content: bytes | None) -> None:
    path = copy / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:20_000] if content is None else content)
    for call in (lambda: train(short_smoke(), copy), lambda: trained_drafts(copy)):
        assert complaint(CheckpointError, call).startswith(f"{path}: the checkpoint is damaged")
    torch.save({"step": 3}, path)
    assert "lacks 'elapsed'" in complaint(CheckpointError, lambda: train(short_smoke(), copy))


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"seed": 1}, "another seed (0, now 1)"),
        ({"target": "draft"}, "another target"),
        ({"data": {"tokens": 40}}, "another recipe"),
    ],
)
def test_data_of_another_run_is_not_added_to(copy: Path, change: dict[str, object], differs: str) -> None:
    other = load_config("smoke", {**SETTINGS, **change})
    assert differs in complaint(UsageError, lambda: make_data(other, copy))
    (copy / "data" / "manifest.json").unlink()
    if "target" not in change:  # a shard knows its seed and shape
        assert "was made with another" in complaint(UsageError, lambda: make_data(other, copy))


def test_more_shards_of_the_same_run_are_welcome(copy: Path) -> None:
    more = load_config("smoke", {**SETTINGS, "data": {"shards": 7}})
    assert len(make_data(more, copy)["shards"]) == 7


def test_another_runs_checkpoint_is_not_continued(copy: Path) -> None:
    other = load_config("smoke", {**SETTINGS, "seed": 1})
    assert "another seed" in complaint(UsageError, lambda: train(other, copy))


def test_unknown_runs_and_impossible_settings_are_bad_use(finished: Path) -> None:
    assert "choose one of smoke, smoke-feature, h200" in complaint(UsageError, lambda: load_config("large"))
    assert "--set" in complaint(UsageError, lambda: load_config("smoke", "{"))
    assert "JSON object" in complaint(UsageError, lambda: load_config("smoke", "[1]"))


def test_a_draft_for_another_tokenizer_is_not_measured(copy: Path) -> None:
    path = copy / "texts.json"
    texts = json.loads(path.read_text()) | {"tokenizer_sha256": "0" * 64}
    path.write_text(json.dumps(texts))
    draft = checkpoints.load("draft").folder
    assert "another tokenizer" in complaint(
        CheckpointError, lambda: evaluate(short_smoke(), copy, drafts=[draft])
    )


def test_a_random_target_is_the_same_everywhere() -> None:
    from specdec_ref.distill.target import RANDOM

    ids = torch.arange(20)
    assert torch.equal(load_target("random")(ids), random_decoder(RANDOM, seed=0)(ids))
