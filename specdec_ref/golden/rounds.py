"""Golden cases of one round's parts: verifiers, prompt lookup, lookahead policies."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

from specdec_ref.acceptance import VERIFIERS, Draft, Kind, greedy_verifier
from specdec_ref.drafters import PromptLookup
from specdec_ref.drafters.base import Request
from specdec_ref.golden import specs
from specdec_ref.golden.content import float32_list, row
from specdec_ref.golden.margins import LEAST_MARGIN, sampled_margins
from specdec_ref.golden.primitives import Cases, as_row
from specdec_ref.lookahead import BreakEvenGate, RoundTiming
from specdec_ref.rng import Uniforms
from specdec_ref.sampling import draw
from specdec_ref.trace import Round

_VOCABULARY = 10


def verifiers() -> dict[str, Cases]:
    """Rows of logits and a draft -> verdict, for all three verifiers, with every kind of outcome."""
    numbers = random.Random(21)
    cases: Cases = []
    greedy = specs.sampling()
    for k, agree in ((0, 0), (1, 0), (1, 1), (4, 0), (4, 2), (4, 4)):
        logits = _logits(numbers, k + 1)
        best = [line.index(max(line)) for line in logits]
        drafted = [best[i] if i < agree else (best[i] + 1) % _VOCABULARY for i in range(k)]
        cases.append(_verified(f"greedy, {agree} of {k} agree", "greedy", greedy, logits, drafted, None))
    tied = [[0.0, 2.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.5]]
    cases.append(_verified("greedy, ties go to the lowest id", "greedy", greedy, tied, [1, 0], None))
    settings = [
        specs.sampling(1.0),
        specs.sampling(0.7, 5),
        specs.sampling(1.2, 0, 0.9),
        specs.sampling(1.0, 8, 0.95, 0.05),
    ]
    for verifier in ("rejection", "match"):
        for k, accepted in ((0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 2), (5, 1)):
            for one_hot in (False, True):
                sampling = settings[len(cases) % len(settings)]
                name = f"{verifier}, {accepted} of {k} stand, {'one-hot q' if one_hot else 'q'}"
                if verifier == "match" and not one_hot:
                    continue  # sample-and-match never looks at q
                cases.append(_steady_case(numbers, name, verifier, sampling, k, accepted, one_hot))
    for index, case in enumerate(cases):
        case["name"] = f"{index:02d} {case['name']}"
    return {"cases": cases}


def _steady_case(
    numbers: random.Random,
    name: str,
    verifier: str,
    sampling: dict[str, Any],
    k: int,
    accepted: int,
    one_hot: bool,
) -> dict[str, Any]:
    """A random case in which so many tokens stand and nothing is too close to call."""
    while True:
        logits = _logits(numbers, k + 1)
        weights = [
            [float(int(numbers.random() * 8)) for _ in range(_VOCABULARY - 1)] + [1.0] for _ in range(k)
        ]
        drafted = [draw(row(w), numbers.random()) for w in weights]
        q = None if one_hot else [float32_list(as_row(w)) for w in weights]
        case = _verified(name, verifier, sampling, logits, drafted, q, seed=int(numbers.random() * 1000))
        if case["verdict"]["accepted"] != accepted:
            continue
        margins = sampled_margins(
            row_matrix(logits),
            _draft(drafted, q),
            specs.make_sampling(sampling),
            Uniforms(case["seed"]),
            round_index=case["round"],
            emitted=case["emitted"] if verifier == "match" else None,
        )
        if min(margins) >= 10 * LEAST_MARGIN:
            return case


def row_matrix(logits: Sequence[Sequence[float]]) -> Any:
    """[T, V] float32 tensor from rows of numbers."""
    return row([value for line in logits for value in line]).view(len(logits), -1)


def _draft(drafted: list[int], q: Sequence[Sequence[float | None]] | None) -> Draft:
    return Draft(list(drafted), None if q is None else [row(line) for line in q])


def _verified(
    name: str,
    verifier: str,
    sampling: dict[str, Any],
    logits: list[list[float]],
    drafted: list[int],
    q: list[list[float | None]] | None,
    *,
    seed: int = 5,
) -> dict[str, Any]:
    judge = greedy_verifier if verifier == "greedy" else VERIFIERS[verifier]
    round_index, emitted = 3, 9
    verdict = judge(
        row_matrix(logits),
        _draft(drafted, q),
        specs.make_sampling(sampling),
        Uniforms(seed),
        round_index=round_index,
        emitted=emitted,
    )
    case: dict[str, Any] = {"name": name, "verifier": verifier, "sampling": sampling, "seed": seed}
    case |= {"round": round_index, "emitted": emitted, "logits": logits, "drafted": drafted, "q": q}
    return case | {"verdict": dataclasses.asdict(verdict)}


def _logits(numbers: random.Random, rows: int) -> list[list[float]]:
    # Multiples of 1/16 are exact in float32 and print short.
    return [
        [round(numbers.gauss(0, 1.5) * 16) / 16 + i / 256 for i in range(_VOCABULARY)] for _ in range(rows)
    ]


def lookup() -> dict[str, Cases]:
    """Prompt lookup on growing texts: what is proposed, and why not more."""
    texts: list[tuple[str, int, int, list[tuple[list[int], int]]]] = [
        ("nothing repeats", 3, 2, [([1, 2, 3, 4, 5], 4)]),
        ("too short to repeat", 3, 2, [([1], 4), ([1, 1], 4)]),
        ("a pair repeats", 3, 2, [([1, 2, 3, 4, 5, 1, 2], 3)]),
        ("fewer follow than asked", 3, 2, [([7, 1, 2, 3, 1, 2], 4)]),
        ("copies may run into the text's own end", 3, 2, [([5, 6, 5, 6, 5, 6], 4)]),
        ("the longest n-gram wins", 3, 2, [([1, 2, 3, 9, 8, 2, 3, 7, 6, 1, 2, 3], 2)]),
        ("the most recent occurrence wins", 3, 2, [([1, 2, 3, 1, 2, 4, 1, 2], 1)]),
        ("one token, repeated", 3, 2, [([4, 4, 4, 4], 3)]),
        ("n = 1 only", 1, 1, [([1, 2, 3, 1], 2), ([1, 2, 3, 1, 5], 2)]),
        ("n = 4 only", 4, 4, [([1, 2, 3, 4, 5, 2, 3, 4], 2), ([1, 2, 3, 4, 5, 1, 2, 3, 4], 2)]),
        ("K = 1", 3, 2, [([1, 2, 3, 4, 5, 1, 2], 1)]),
        ("a text that grows", 3, 2, [([1, 2, 3, 1], 3), ([1, 2, 3, 1, 2], 3), ([1, 2, 3, 1, 2, 3, 1], 3)]),
        ("a text that grows by several tokens", 2, 2, [([9, 8, 7], 3), ([9, 8, 7, 6, 9, 8, 7, 6, 9, 8], 5)]),
    ]
    numbers = random.Random(22)
    long = [int(numbers.random() * 4) for _ in range(40)]
    texts.append(("random", 3, 1, [(long[:n], 5) for n in (2, 5, 9, 10, 17, 25, 40)]))
    cases = []
    for name, longest, shortest, calls in texts:
        drafter = PromptLookup(longest, shortest)
        drafter.begin(calls[0][0])
        done = []
        for tokens, k in calls:
            draft, reason = drafter.propose(Request(tokens, k))
            done.append({"tokens": tokens, "k": k, "drafted": draft.tokens, "reason": reason})
        cases.append({"name": name, "longest": longest, "shortest": shortest, "calls": done})
    return {"cases": cases}


_Observed = tuple[int, int, float, float]
"""Tokens drafted and emitted in a round, and the seconds of drafting and of the whole round."""


def policies() -> dict[str, Cases]:
    """Which K each policy asks for after what happened; whether to draft on; what a round costs."""
    four = specs.costs(0.1, {0: 1.0, 1: 1.1, 2: 1.2, 4: 1.5})
    gate = {"type": "gate", "inner": {"type": "fixed", "k": 4}, "costs": four}
    quick = gate | {"window": 4, "probe": 2, "rest": 3, "longest_rest": 6}
    timed = quick | {"costs": None}
    sure = {"type": "confidence", "k": 5, "threshold": 0.4}
    good, poor, lean = (4, 4, 0.001, 0.01), (4, 1, 0.001, 0.01), (4, 2, 0.001, 0.01)
    two, one, lost, slow = (2, 3, 0.001, 0.01), (1, 1, 0.001, 0.01), (5, 1, 0.002, 0.01), (0, 1, 0.0, 0.02)
    plain, none = (0, 1, 0.0, 0.005), (0, 1, 0.0, 0.006)
    scripts: list[tuple[str, dict[str, Any], list[_Observed]]] = [
        ("fixed", {"type": "fixed", "k": 4}, [good, poor, none]),
        ("fixed 0 is plain decoding", {"type": "fixed", "k": 0}, [plain]),
        ("confidence keeps its K", sure, [good, poor]),
        ("gate stays open while it pays", quick, [good] * 4),
        (
            "gate closes, rests, probes, rests twice as long",
            quick,
            [poor] * 2 + [plain] * 3 + [poor] * 2 + [plain] * 7,
        ),
        ("gate's rest has a limit", quick, ([poor] * 2 + [plain] * 6) * 3),
        (
            "gate's rest shrinks again after a good spell",
            quick,
            [poor] * 2 + [plain] * 3 + [good] * 8 + [poor] * 12,
        ),
        ("rounds without a draft do not count", quick, [none, poor, none, poor, plain, plain, plain, good]),
        ("gain close to one", quick, [lean] * 6),
        ("averages decay", quick, [good, poor, poor, poor, poor, poor]),
        ("gate around a confidence stop", quick | {"inner": sure}, [two, one, lost, lost]),
        (
            "default windows",
            gate | {"window": 16, "probe": 8, "rest": 32, "longest_rest": 512},
            [poor] * 8 + [plain] * 33,
        ),
        ("timed gate runs plainly first", timed, [plain, none, good, poor, lean, poor, plain, plain]),
        ("timed gate: the fastest plain step counts", timed, [slow, plain, good, lean]),
    ]
    always, fixed = {"type": "confidence", "k": 5, "threshold": 0.0}, {"type": "fixed", "k": 4}
    confident = [
        {"policy": policy, "probability": p, "confident": specs.make_policy(policy).confident(p)}
        for policy in (sure, always, quick | {"inner": sure}, fixed)
        for p in (0.0, 0.39, 0.4, 0.4000000059604645, 1.0)
    ]
    sparse = specs.costs(0.07, {0: 1.0, 3: 1.3, 8: 2.8})
    rounds = [
        {"costs": costs, "drafted": drafted, "cost": specs.make_costs(costs).round_cost(drafted)}
        for costs in (four, sparse)
        for drafted in (0, 1, 2, 3, 4, 5, 8, 12)
    ]
    return {
        "cases": [_followed(*script) for script in scripts],
        "confident": confident,
        "round_costs": rounds,
    }


def _followed(name: str, spec: dict[str, Any], script: Sequence[_Observed]) -> dict[str, Any]:
    policy = specs.make_policy(spec)
    steps = []
    for drafted, emitted, draft_seconds, total_seconds in script:
        k, reason = policy.next_k()
        if not drafted or not k:  # a script may offer a draft where the policy wants none
            drafted, emitted = 0, 1
        tokens = list(range(drafted))
        kind: Kind = "plain" if not drafted else "bonus" if emitted > drafted else "correction"
        policy.observe(
            Round(k, reason, tokens, emitted - 1, 0, kind),
            RoundTiming(draft=draft_seconds, total=total_seconds),
        )
        step = {"k": k, "reason": reason, "drafted": drafted, "emitted": emitted}
        step |= {"seconds": {"draft": draft_seconds, "total": total_seconds}}
        if isinstance(policy, BreakEvenGate):
            step["gain"] = policy.gain
        steps.append(step)
    return {"name": name, "policy": spec, "steps": steps}
