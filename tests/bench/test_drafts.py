"""`specdec bench drafts`: its figures are those of the decoding loop, and its file has what others read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specdec_ref.acceptance import match_verifier
from specdec_ref.bench.drafts import Settings, drafts_of, emitted, replay, run_drafts
from specdec_ref.cli import app
from specdec_ref.decoding import speculative
from specdec_ref.drafters import PromptLookup
from specdec_ref.errors import UsageError
from specdec_ref.pair import load_pair
from specdec_ref.prompts import load_prompts
from specdec_ref.sampling import Sampling
from specdec_ref.trace import Telemetry

PROMPTS = [
    {"prompt": "Tell me about a cat.", "class": "a"},
    {"prompt": "Tell me about a dog.", "class": "b"},
    {"prompt": "Say it twice: the cat, the cat, the cat.", "class": "b"},
]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in PROMPTS))
    return path


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "T=1"])
def test_replayed_lookup_takes_the_loops_rounds(sampling: Sampling) -> None:
    pair = load_pair("nano-target", "none", context=256)
    eager = PromptLookup(longest=2, shortest=1)  # the nano pair's short answers repeat no two tokens in a row
    drafted = 0
    for number, prompt in enumerate(PROMPTS * 3):
        ids = pair.prompt_ids(prompt["prompt"])
        done = speculative(
            pair.target, eager, ids, lookahead=4, sampling=sampling, verifier=match_verifier,
            max_new_tokens=40, eos_ids=pair.eos_ids, seed=number,
        )  # fmt: skip
        ours = replay(PromptLookup(longest=2, shortest=1), ids, done.tokens, 4, 40)
        assert emitted(ours) == done.tokens
        assert [(r.k, r.drafted, r.accepted, r.next, r.kind) for r in ours] == [
            (r.k, r.drafted, r.accepted, r.next, r.kind) for r in done.trace
        ]
        drafted += done.telemetry.drafted
    assert drafted > 0


def test_figures_are_the_decoding_loops_own(prompts: Path) -> None:
    settings = Settings(target="nano-target", max_new_tokens=24, repeats=1, resamples=50)
    report = run_drafts(load_prompts(prompts), settings)
    model, lookup = report["drafts"]
    assert (model["name"], lookup["name"]) == ("nano-draft", "lookup")
    for drafter, figures in (("nano-draft", model), ("lookup", lookup)):
        pair = load_pair("nano-target", drafter, context=256)
        assert pair.drafter is not None
        counts: dict[str, Telemetry] = {}
        for prompt in load_prompts(prompts):
            done = speculative(
                pair.target, pair.drafter, pair.prompt_ids(prompt.turns[0]), lookahead=4,
                max_new_tokens=24, eos_ids=pair.eos_ids,
            )  # fmt: skip
            counts[prompt.kind] = counts.get(prompt.kind, Telemetry()) + done.telemetry
        by_class = {kind: t.emitted / t.target_passes for kind, t in counts.items()}
        assert figures["classes"]["greedy"] == pytest.approx(by_class, abs=1e-4)
        assert figures["tau_greedy_k4"] == pytest.approx(sum(by_class.values()) / 2, abs=1e-4)
        assert figures["ci"] == {"greedy": None, "t1": None}, "class a has one prompt"
    twice = [*load_prompts(prompts), *load_prompts(prompts)]
    model = run_drafts([replace(p, id=f"{i}") for i, p in enumerate(twice)], settings)["drafts"][0]
    low, high = model["ci"]["greedy"]
    assert 1 <= low <= model["tau_greedy_k4"] <= high


def test_the_file_has_every_key_that_others_read(prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "drafts.json"
    arguments = ["bench", "drafts", "--quick", "--target", "nano-target", "--prompts", str(prompts)]
    result = CliRunner().invoke(app, [*arguments, "--json", str(out), "--seed", "3"])
    assert result.exit_code == 0, result.output
    report = json.loads(out.read_text())
    assert {"machine", "versions", "command", "date", "seed", "drafts"} <= set(report)
    assert report["seed"] == 3 and report["prompts"] == 2 and report["max_new_tokens"] == 32
    for draft in report["drafts"]:
        assert {"name", "kind", "params_body", "c_params", "c_measured", "tau_greedy_k4", "tau_t1_k4"} <= set(
            draft
        )
        assert {"alpha", "ci", "classes"} <= set(draft)
        assert set(draft["classes"]) == {"greedy", "t1"} and set(draft["classes"]["t1"]) == {"a", "b"}
        assert draft["c_measured"] >= 0
    assert [draft["kind"] for draft in report["drafts"]] == ["model", "lookup"]


def test_drafts_are_found_by_the_target_they_name() -> None:
    assert drafts_of("smollm2-135m") == ["draft-320x4", "draft-256x2", "feature-256x1"]
    with pytest.raises(UsageError, match="--draft"):
        run_drafts([], Settings(target="draft"))
