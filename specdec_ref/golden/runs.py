"""Running one case of `traces.json`: what the generator records and every reader repeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec_ref import checkpoints
from specdec_ref.acceptance import VERIFIERS
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.errors import CheckpointError
from specdec_ref.golden import specs
from specdec_ref.golden.margins import Margins, RecordingDrafter, RecordingRunner, measure
from specdec_ref.golden.nano import DRAFT, TARGET
from specdec_ref.model import Decoder
from specdec_ref.rng import Uniforms
from specdec_ref.tokenizer import Tokenizer
from specdec_ref.trace import Generation, Round


@dataclass(frozen=True)
class Nano:
    """The committed pair, loaded."""

    target: Decoder
    draft: Decoder
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]


def load_nano(models: Path, dtype: torch.dtype = torch.float32) -> Nano:
    """Load the pair from `models`/nano-target and `models`/nano-draft.

    Raises:
        CheckpointError: a folder is missing, damaged, or not of this pair.
    """
    if not (models / TARGET).is_dir():
        raise CheckpointError(
            "the nano pair is missing",
            where=str(models),
            fix="make it with `python -m specdec_ref.golden nano`",
        )
    target, draft = checkpoints.load(models / TARGET, dtype), checkpoints.load(models / DRAFT, dtype)
    checkpoints.check_same_tokenizer(target, draft)
    if target.tokenizer is None:
        raise CheckpointError("tokenizer.json is missing", where=str(models / TARGET))
    return Nano(target.model, draft.model, target.tokenizer, target.eos_ids)


def run(nano: Nano, case: Mapping[str, Any]) -> tuple[Generation, Margins]:
    """Decode as `case` says and measure how close its decisions were.

    Args:
        nano: the pair.
        case: everything of a case but `expected`.
    """
    target = RecordingRunner(nano.target, case["context"])
    draft_runner = RecordingRunner(nano.draft, case["draft_context"])
    target.reset()
    draft_runner.reset()
    sampling = specs.make_sampling(case["sampling"])
    common: dict[str, Any] = {
        "sampling": sampling,
        "max_new_tokens": case["max_new_tokens"],
        "eos_ids": case["eos_ids"],
        "stop_when": _stop_when(nano.tokenizer, case["stop"]),
        "seed": case["seed"],
        "on_token": _cancel_after(case["cancel_after"]),
    }
    drafter = None
    if case["drafter"] is None:
        done = autoregressive(target, case["prompt_ids"], **common)
    else:
        inner = specs.make_drafter(case["drafter"], draft_runner, target.vocab_size)
        drafter = RecordingDrafter(inner, draft_runner)
        policy = specs.make_policy(case["policy"])
        verifier = VERIFIERS[case["verifier"]]
        done = speculative(target, drafter, case["prompt_ids"], lookahead=policy, verifier=verifier, **common)
    verifier_name = "match" if drafter is None else case["verifier"]
    threshold = _threshold(case["policy"])
    margins = measure(
        target, drafter, sampling, Uniforms(case["seed"]), verifier=verifier_name, threshold=threshold
    )
    return done, margins


def expected(done: Generation, tokenizer: Tokenizer) -> dict[str, Any]:
    """A generation as the `expected` object of a case: all that does not depend on the clock."""
    return {
        "tokens": done.tokens,
        "text": tokenizer.decode(done.tokens),
        "finish_reason": done.finish_reason,
        "rounds": [_round(entry) for entry in done.trace],
        "telemetry": dataclasses.asdict(done.telemetry),
    }


def _round(entry: Round) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in ("k", "reason", "drafted", "accepted", "next", "kind")}


def _stop_when(tokenizer: Tokenizer, stop: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    if not stop:
        return None

    def ends(tokens: Sequence[int]) -> bool:
        text = tokenizer.decode(tokens)
        return any(string in text for string in stop)

    return ends


def _cancel_after(count: int | None) -> Callable[[int], bool] | None:
    if count is None:
        return None
    seen = 0

    def on_token(_token: int) -> bool:
        nonlocal seen
        seen += 1
        return seen < count

    return on_token


def _threshold(policy: Mapping[str, Any] | None) -> float | None:
    while policy is not None and "inner" in policy:
        policy = policy["inner"]
    return None if policy is None else policy.get("threshold")
