"""The golden README is enough: a second implementation in plain Python, written from it, agrees with it all.

This is what the C++, Swift and Kotlin tests do as well. Nothing here imports the code that made the files.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from typing import Any

import pytest

from specdec_ref import paths

Case = dict[str, Any]
GOLDEN = paths.assets() / "golden"
MASK = 0xFFFFFFFF
PURPOSES = {"target": 0, "draft": 1, "accept": 2}


def cases(name: str, key: str = "cases") -> list[Case]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))[key]


def named(name: str, key: str = "cases") -> Any:
    return pytest.mark.parametrize("case", cases(name, key), ids=lambda case: case.get("name", ""))


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def uniform(seed: int, round_index: int, slot: int, purpose: str) -> float:
    words = philox([round_index, slot, PURPOSES[purpose], 0], [seed & MASK, seed >> 32])
    return ((words[0] >> 5) * 2**26 + (words[1] >> 6)) / 2**53


def draw(weights: list[float], u: float) -> int:
    masses = list(itertools.accumulate(weights))  # plain float64 sums, which sum() is not from Python 3.12 on
    for token, mass in enumerate(masses):
        if mass > u * masses[-1]:
            return token
    return max(token for token, weight in enumerate(weights) if weight)


def probabilities(logits: list[float | None], sampling: Case) -> list[float]:
    values = [-math.inf if value is None else value for value in logits]
    if sampling["temperature"] == 0:
        return [float(token == values.index(max(values))) for token in range(len(values))]
    values = [float32(value / sampling["temperature"]) for value in values]
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    kept = order[: sampling["top_k"] or None]
    e = {token: math.exp(values[token] - values[order[0]]) for token in kept}
    p = {token: value / sum(e.values()) for token, value in e.items()}
    if sampling["top_p"] < 1:
        mass, nucleus = 0.0, {}
        for token in kept:
            nucleus[token] = p[token]
            mass += float32(p[token])
            if mass >= sampling["top_p"]:
                break
        p = nucleus
    floor = sampling["min_p"] * max(p.values())
    p = {token: value for token, value in p.items() if value >= floor}
    total = sum(p.values())
    return [float32(p.get(token, 0.0) / total) for token in range(len(values))]


def judge(p: list[float], q: list[float], token: int, u_accept: float, u_resample: float) -> tuple[bool, int]:
    if u_accept * q[token] < p[token]:
        return True, token
    residual = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return False, draw(residual if any(residual) else p, u_resample)


def verdict(case: Case) -> Case:
    drafted, rows = case["drafted"], [probabilities(row, case["sampling"]) for row in case["logits"]]
    q = case["q"] or [[float(token == other) for other in range(len(rows[0]))] for token in drafted]
    accepted, token = 0, 0
    for slot, p in enumerate(rows):
        last = slot == len(drafted)
        if case["verifier"] == "greedy":
            token = p.index(max(p))
        elif case["verifier"] == "match":
            token = draw(p, uniform(case["seed"], case["emitted"] + slot, 0, "target"))
        else:
            u = uniform(case["seed"], case["round"], slot, "target")
            if last:
                token = draw(p, u)
            else:
                u_accept = uniform(case["seed"], case["round"], slot, "accept")
                token = judge(p, q[slot], drafted[slot], u_accept, u)[1]
        if last or token != drafted[slot]:
            break
        accepted += 1
    kind = "plain" if not drafted else "bonus" if accepted == len(drafted) else "correction"
    return {"accepted": accepted, "next": token, "kind": kind}


def looked_up(tokens: list[int], k: int, longest: int, shortest: int) -> tuple[list[int], str | None]:
    for n in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if n < len(tokens) and tokens[end - n : end] == tokens[-n:]:
                copied = tokens[end : end + k]
                return copied, None if len(copied) == k else "no match"
    return [], "no match"


def round_cost(costs: Case, drafted: int) -> float:
    v = sorted(costs["v"])
    low, high = v[-2:]
    for left, right in itertools.pairwise(v):
        if left[0] <= drafted <= right[0]:
            low, high = left, right
            break
    return costs["c"] * drafted + low[1] + (high[1] - low[1]) / (high[0] - low[0]) * (drafted - low[0])


@pytest.mark.parametrize("block", cases("philox", "blocks"))
def test_philox_blocks(block: Case) -> None:
    assert philox(block["counter"], block["key"]) == block["words"]


def test_uniforms() -> None:
    for case in cases("philox", "uniforms"):
        assert uniform(int(case["seed"]), case["round"], case["slot"], case["purpose"]) == case["uniform"]
        assert case["counter"] == [case["round"], case["slot"], PURPOSES[case["purpose"]], 0]


@named("draw")
def test_draw(case: Case) -> None:
    assert draw(case["weights"], case["uniform"]) == case["token"]
    assert all(float32(weight) == pytest.approx(weight, rel=1e-7) for weight in case["weights"])


@named("processors")
def test_processors(case: Case) -> None:
    ours = probabilities(case["logits"], case["sampling"])
    assert [p > 0 for p in ours] == [p > 0 for p in case["probabilities"]]
    assert ours == pytest.approx(case["probabilities"], abs=1e-6)
    assert sum(case["probabilities"]) == pytest.approx(1, abs=1e-6)


@named("acceptance")
def test_acceptance(case: Case) -> None:
    p, q = ([float32(value) for value in case[name]] for name in "pq")
    assert judge(p, q, case["token"], case["u_accept"], case["u_resample"]) == (
        case["accepted"],
        case["result"],
    )


@named("verifiers")
def test_verifiers(case: Case) -> None:
    assert verdict(case) == case["verdict"]


@named("lookup")
def test_lookup(case: Case) -> None:
    for call in case["calls"]:
        found = looked_up(call["tokens"], call["k"], case["longest"], case["shortest"])
        assert found == (call["drafted"], call["reason"])


def test_round_costs() -> None:
    for case in cases("policies", "round_costs"):
        assert round_cost(case["costs"], case["drafted"]) == pytest.approx(case["cost"], rel=1e-12)


@named("policies")
def test_policy_reasons(case: Case) -> None:
    for step in case["steps"]:
        assert step["reason"] in ("gate", "fixed")
        assert step["reason"] != "gate" or step["k"] == 0
