"""Settings as golden files name them -> the objects of this package. Other languages have the same table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_ref.drafters import Drafter, FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.lookahead import BreakEvenGate, ConfidenceStop, Costs, FixedLookahead, LookaheadPolicy
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling


def sampling(
    temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> dict[str, Any]:
    """The `sampling` object of a case."""
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}


def make_sampling(spec: Mapping[str, Any]) -> Sampling:
    """`{"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}` -> `Sampling`."""
    return Sampling(**spec)


def costs(c: float, v: Mapping[int, float]) -> dict[str, Any]:
    """The `costs` object of a case; JSON has no whole-number keys, so v is a list of pairs."""
    return {"c": c, "v": [[k, cost] for k, cost in v.items()]}


def make_costs(spec: Mapping[str, Any]) -> Costs:
    """`{"c": 0.1, "v": [[0, 1.0], [4, 1.5]]}` -> `Costs`."""
    return Costs(spec["c"], dict(spec["v"]))


def make_policy(spec: Mapping[str, Any]) -> LookaheadPolicy:
    """`{"type": "fixed", "k": 4}`, "confidence" with `threshold`, or "gate" around an `inner` policy."""
    if spec["type"] == "fixed":
        return FixedLookahead(spec["k"])
    if spec["type"] == "confidence":
        return ConfidenceStop(spec["k"], spec["threshold"])
    return BreakEvenGate(
        make_policy(spec["inner"]),
        None if spec["costs"] is None else make_costs(spec["costs"]),
        window=spec["window"],
        probe=spec["probe"],
        rest=spec["rest"],
        longest_rest=spec["longest_rest"],
    )


def make_drafter(spec: Mapping[str, Any], draft: Runner, vocab_size: int) -> Drafter:
    """`{"type": "model"}`, "lookup" with `longest` and `shortest`, or "first_match" of several `drafters`."""
    if spec["type"] == "model":
        return ModelDrafter(draft, vocab_size)
    if spec["type"] == "lookup":
        return PromptLookup(spec["longest"], spec["shortest"])
    return FirstMatch(*(make_drafter(inner, draft, vocab_size) for inner in spec["drafters"]))
