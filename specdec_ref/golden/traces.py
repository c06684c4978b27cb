"""Golden traces: whole generations of the nano pair, for every part of the loop that others must repeat."""

from __future__ import annotations

from typing import Any

from specdec_ref.errors import SpecdecError
from specdec_ref.golden import specs
from specdec_ref.golden.margins import LEAST_GAP, LEAST_MARGIN
from specdec_ref.golden.primitives import Cases
from specdec_ref.golden.runs import Nano, expected, run

Case = dict[str, Any]

PROMPTS: dict[str, list[tuple[str, str]]] = {
    "story": [("user", "Tell me about a fox.")],
    "code": [("user", "Write code to add b and a.")],
    "maths": [("user", "What is 2 + 3?")],
    "count": [("user", "Count from 3 to 7.")],
    "taste": [("user", "Do you like cheese?")],
    "list": [("user", "List 3 animals.")],
    "hello": [("user", "Hello, I am Ada.")],
    "again": [
        ("user", "Tell me about a dog."),
        ("assistant", "The old cat is black. It lives near the forest and sings in the summer."),
        ("user", "Tell me about a cat."),
    ],
}
"""Conversations by name. "again" asks nearly the same twice, so that the answer can be copied."""

MODEL: Case = {"type": "model"}
LOOKUP: Case = {"type": "lookup", "longest": 3, "shortest": 2}
BOTH: Case = {"type": "first_match", "drafters": [LOOKUP, MODEL]}
COSTS = specs.costs(0.25, {0: 1.0, 1: 1.2, 2: 1.4, 4: 1.8, 8: 2.6})
_SEEDS = 500


def _fixed(k: int) -> Case:
    return {"type": "fixed", "k": k}


def _gate(inner: Case, *, c: float = 0.25) -> Case:
    costs = COSTS | {"c": c}
    gate: Case = {"type": "gate", "inner": inner, "costs": costs}
    return gate | {"window": 8, "probe": 3, "rest": 4, "longest_rest": 16}


def _case(prompt: str, drafter: Case | None = MODEL, policy: Case | None = None, **other: Any) -> Case:
    """A case without its prompt's ids and without what is expected."""
    settings: Case = {"prompt": prompt, "sampling": specs.sampling(), "seed": 0, "max_new_tokens": 40}
    settings |= {"context": 256, "draft_context": 256}
    settings |= {"stop": [], "cancel_after": None, "drafter": drafter}
    settings |= {"policy": None if drafter is None else policy or _fixed(4)}
    settings |= {"verifier": None if drafter is None else "rejection"}
    return settings | other


def _greedy() -> list[tuple[str, Case]]:
    cases = []
    for prompt in PROMPTS:
        cases.append((f"greedy, {prompt}, plain", _case(prompt, None)))
        cases.append((f"greedy, {prompt}, draft model, K = 4", _case(prompt)))
    for k in (0, 1, 2, 5, 8):
        cases.append((f"greedy, story, draft model, K = {k}", _case("story", policy=_fixed(k))))
    for prompt in ("again", "code", "list"):
        cases.append((f"greedy, {prompt}, lookup", _case(prompt, LOOKUP)))
        cases.append((f"greedy, {prompt}, lookup then draft model", _case(prompt, BOTH)))
    sure = {"type": "confidence", "k": 6, "threshold": 0.5}
    cases += [
        ("greedy, confidence stop", _case("taste", policy=sure)),
        ("greedy, gate closes", _case("story", policy=_gate(_fixed(4), c=0.9))),
        ("greedy, gate stays open", _case("code", policy=_gate(_fixed(4), c=0.05))),
        ("greedy, gate around a confidence stop", _case("taste", BOTH, _gate(sure))),
    ]
    return cases


def _endings() -> list[tuple[str, Case]]:
    return [
        ("one new token", _case("story", max_new_tokens=1)),
        ("no new tokens", _case("story", max_new_tokens=0)),
        ("length: the budget clips K", _case("story", max_new_tokens=10, policy=_fixed(8))),
        ("length: K larger than the budget", _case("story", max_new_tokens=3, policy=_fixed(8))),
        ("context ends before the budget", _case("story", context=40)),
        ("context is full after the prompt", _case("story", None, context=0)),
        ("context ends, plain", _case("story", None, context=40)),
        ("the draft's context ends first", _case("story", draft_context=40)),
        ("stop string", _case("story", stop=[" is"])),
        ("stop string across tokens", _case("taste", stop=["never", "cannot eat"])),
        ("stop string, plain", _case("taste", None, stop=["never", "cannot eat"])),
        ("stop string inside a lookup draft", _case("again", LOOKUP, _fixed(8), stop=["near the"])),
        ("cancelled", _case("story", cancel_after=7)),
        ("cancelled at the first token", _case("story", cancel_after=1)),
        ("eos inside a draft", _case("list", policy=_fixed(6))),
    ]


def _sampled() -> list[tuple[str, Case]]:
    warm, cut = specs.sampling(1.0), specs.sampling(0.9, 12, 0.9, 0.04)
    hot = specs.sampling(1.3)
    sure = {"type": "confidence", "k": 6, "threshold": 0.5}
    cases = [("sampled, plain", _case("story", None, sampling=warm))]
    cases.append(("sampled with processors, plain", _case("story", None, sampling=cut)))
    for verifier in ("rejection", "match"):
        for k in (1, 4):
            cases.append(
                (
                    f"sampled, {verifier}, K = {k}",
                    _case("story", policy=_fixed(k), verifier=verifier, sampling=warm),
                )
            )
        cases += [
            (f"sampled, {verifier}, processors", _case("story", verifier=verifier, sampling=cut)),
            (f"sampled, {verifier}, temperature 1.3", _case("hello", verifier=verifier, sampling=hot)),
            (f"sampled, {verifier}, lookup", _case("again", LOOKUP, verifier=verifier, sampling=warm)),
            (
                f"sampled, {verifier}, lookup then draft model",
                _case("again", BOTH, verifier=verifier, sampling=cut),
            ),
            (f"sampled, {verifier}, confidence", _case("code", policy=sure, verifier=verifier, sampling=cut)),
            (
                f"sampled, {verifier}, gate",
                _case("count", policy=_gate(_fixed(4)), verifier=verifier, sampling=warm),
            ),
        ]
    return cases


def traces(nano: Nano, precise: Nano | None = None) -> dict[str, Cases]:
    """Run every case; sampled ones with the first seed under which no decision is close.

    Args:
        nano: the pair in float32.
        precise: the pair in float64, which must decide the same; None: not asked.

    Raises:
        SpecdecError: a greedy case has a close decision, or the two precisions disagree.
    """
    cases = []
    for name, settings in [*_greedy(), *_endings(), *_sampled()]:
        turns = [{"role": role, "content": content} for role, content in PROMPTS[settings["prompt"]]]
        prompt_ids = nano.tokenizer.chat(turns)
        case: Case = {"name": name} | settings | {"messages": turns, "prompt_ids": prompt_ids}
        case["eos_ids"] = list(nano.eos_ids)
        case["context"] = settings["context"] or len(prompt_ids)
        del case["prompt"]
        cases.append(_recorded(nano, precise, case))
    return {"cases": cases}


def _recorded(nano: Nano, precise: Nano | None, case: Case) -> Case:
    greedy = case["sampling"]["temperature"] == 0
    for seed in range(1 if greedy else _SEEDS):
        case["seed"] = seed
        done, margins = run(nano, case)
        if margins.enough:
            case["expected"] = expected(done, nano.tokenizer)
            if precise is not None and expected(run(precise, case)[0], nano.tokenizer) != case["expected"]:
                raise SpecdecError("float32 and float64 decide differently", where=f"traces: {case['name']}")
            return case
    raise SpecdecError(
        "a decision is too close to repeat on another processor "
        f"(gap {margins.gap:.4f}, margin {margins.margin:.1e}; needed {LEAST_GAP} and {LEAST_MARGIN})",
        where=f"traces: {case['name']}",
        fix="choose another prompt",
    )
