"""Golden traces and tokenizer vectors: they add up, cover every outcome, and agree with each other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from specdec_ref import paths
from specdec_ref.golden.runs import Nano, expected, load_nano, run
from specdec_ref.tokenizer import Tokenizer

Case = dict[str, Any]
GOLDEN = paths.assets() / "golden"


def cases(name: str, key: str = "cases") -> list[Case]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))[key]


def test_golden_cases_cover_every_outcome() -> None:
    accepted = [case["accepted"] for case in cases("acceptance")]
    assert accepted.count(True) >= 8 and accepted.count(False) >= 8
    verdicts = {(case["verifier"], case["verdict"]["kind"]) for case in cases("verifiers")}
    assert verdicts == {
        (v, k) for v in ("greedy", "rejection", "match") for k in ("plain", "bonus", "correction")
    }
    found = cases("traces")
    assert {c["expected"]["finish_reason"] for c in found} == {
        "eos",
        "stop",
        "length",
        "context",
        "cancelled",
    }
    rounds = [entry for case in found for entry in case["expected"]["rounds"]]
    assert {entry["kind"] for entry in rounds} == {"correction", "bonus", "plain", "stop"}
    reasons = {"fixed", "budget", "confidence", "no match", "gate", "plain", "draft context"}
    assert {entry["reason"] for entry in rounds} == reasons


@pytest.fixture(scope="module")
def nano() -> Nano:
    return load_nano(paths.assets() / "models")


@pytest.mark.parametrize("case", cases("traces")[1::7], ids=lambda case: case["name"])
def test_running_the_loop_again_gives_the_trace(case: Case, nano: Nano) -> None:
    done, margins = run(nano, case)
    assert expected(done, nano.tokenizer) == case["expected"]
    assert margins.enough


@pytest.mark.parametrize("case", cases("traces"), ids=lambda case: case["name"])
def test_trace_adds_up(case: Case) -> None:
    wanted, rounds = case["expected"], case["expected"]["rounds"]
    emitted = [
        token
        for entry in rounds
        for token in entry["drafted"][: entry["accepted"]]
        + ([] if entry["next"] is None else [entry["next"]])
    ]
    assert emitted == wanted["tokens"]
    assert len(emitted) <= case["max_new_tokens"]
    assert len(case["prompt_ids"]) + len(emitted) <= case["context"]
    room = min(case["max_new_tokens"], case["context"] - len(case["prompt_ids"]))
    assert (len(emitted) == room) == (wanted["finish_reason"] in ("length", "context")) or emitted[-1] == 2
    telemetry = wanted["telemetry"]
    assert telemetry["rounds"] == telemetry["target_passes"] == len(rounds)
    assert telemetry["emitted"] == len(emitted)
    assert (
        telemetry["drafted"]
        == sum(telemetry["per_position_drafted"])
        == sum(len(r["drafted"]) for r in rounds)
    )
    assert (
        telemetry["accepted"] == sum(telemetry["per_position_accepted"]) == sum(r["accepted"] for r in rounds)
    )
    assert telemetry["k_trace"] == [entry["k"] for entry in rounds]
    assert telemetry["emitted"] == telemetry["accepted"] + sum(entry["next"] is not None for entry in rounds)


def _question(case: Case) -> str:
    kept = ("messages", "sampling", "seed", "max_new_tokens", "context", "stop", "cancel_after")
    return json.dumps([case[name] for name in kept], sort_keys=True)


def test_greedy_speculation_gives_the_plain_text() -> None:
    plain = {_question(case): case["expected"] for case in cases("traces") if case["drafter"] is None}
    compared = 0
    for case in cases("traces"):
        if case["drafter"] is not None and case["sampling"]["temperature"] == 0 and _question(case) in plain:
            compared += 1
            for name in ("tokens", "finish_reason", "text"):
                assert case["expected"][name] == plain[_question(case)][name], case["name"]
    assert compared >= 15


def test_drafts_are_sometimes_right_and_sometimes_wrong() -> None:
    for kind in ("model", "lookup", "first_match"):
        chosen = [case for case in cases("traces") if (case["drafter"] or {}).get("type") == kind]
        drafted = sum(case["expected"]["telemetry"]["drafted"] for case in chosen)
        accepted = sum(case["expected"]["telemetry"]["accepted"] for case in chosen)
        assert 0.1 < accepted / drafted < 0.95, kind


# --- tokenizer


@pytest.fixture
def tokenizer(nano: Nano) -> Tokenizer:
    return nano.tokenizer


def test_streams_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    for case in cases("tokenizer_nano", "stream"):
        whole = tokenizer.decode(case["ids"], skip_special=case["skip_special"])
        assert "".join(case["pieces"]) + case["rest"] == whole, case["name"]
        assert len(case["pieces"]) == len(case["ids"])


def test_affixes_give_the_same_ids_as_the_template(tokenizer: Tokenizer) -> None:
    content = json.loads((GOLDEN / "tokenizer_nano.json").read_text(encoding="utf-8"))
    affixes, special = content["chat_affixes"], content["special_tokens"]
    pattern = re.compile("|".join(map(re.escape, special)))
    for case in content["chat"]:
        messages, parts = case["messages"], list[tuple[str, bool]]()
        if messages[0]["role"] != "system":
            parts.append((affixes["opening"], True))
        for message in messages:
            prefix, suffix = affixes[message["role"]]
            parts += [(prefix, True), (message["content"], False), (suffix, True)]
        if case["add_generation_prompt"]:
            parts.append((affixes["generation"], True))
        ids, text = list[int](), ""  # text between two special tokens is encoded in one piece
        for part, ours in parts:
            end = 0
            for match in pattern.finditer(part) if ours else ():
                ids += [*tokenizer.encode(text + part[end : match.start()]), special[match[0]]]
                text, end = "", match.end()
            text += part[end:]
        assert ids + tokenizer.encode(text) == case["ids"], messages
    assert special == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}


def test_text_written_like_special_tokens_stays_text() -> None:
    for case in cases("tokenizer_nano", "encode"):
        if not case["parse_special"]:
            assert not {0, 1, 2} & set(case["ids"]), case["text"]
        assert case["decoded"] == case["text"]
