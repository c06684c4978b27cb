"""Golden cases of the smallest parts: uniforms, drawing, one distribution, one acceptance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_ref.acceptance import accept_or_resample
from specdec_ref.errors import SpecdecError
from specdec_ref.golden import specs
from specdec_ref.golden.content import float32_list, row
from specdec_ref.golden.margins import LEAST_MARGIN, cut_margin
from specdec_ref.rng import Purpose, Uniforms, philox4x32
from specdec_ref.sampling import distribution, draw

Cases = list[dict[str, Any]]

ALMOST_ONE = 1 - 2**-53
"""The largest uniform that can be drawn."""

_ONES = 0xFFFFFFFF
_BLOCKS: tuple[tuple[tuple[int, int, int, int], tuple[int, int]], ...] = (
    ((0, 0, 0, 0), (0, 0)),
    ((_ONES, _ONES, _ONES, _ONES), (_ONES, _ONES)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)),
    ((1, 0, 0, 0), (0, 0)),
    ((0, 1, 0, 0), (0, 0)),
    ((0, 0, 1, 0), (0, 0)),
    ((0, 0, 0, 0), (1, 0)),
    ((0, 0, 0, 0), (0, 1)),
)
"""Counters and keys; the first three are the known answers that Philox's authors publish."""


def philox() -> dict[str, Cases]:
    """Blocks of Philox4x32-10, and uniforms by name."""
    blocks = [
        {"counter": list(counter), "key": list(key), "words": list(philox4x32(counter, key))}
        for counter, key in _BLOCKS
    ]
    uniforms = []
    for seed in (0, 1, 42, 2**32, 2**63 + 12345, 2**64 - 1):
        for round_index, slot, purpose in (
            (0, 0, Purpose.TARGET),
            (0, 0, Purpose.DRAFT),
            (0, 0, Purpose.ACCEPT),
            (7, 3, Purpose.ACCEPT),
            (100_000, 15, Purpose.TARGET),
        ):
            uniforms.append(
                {
                    "seed": str(seed),
                    "key": [seed & _ONES, seed >> 32],
                    "round": round_index,
                    "slot": slot,
                    "purpose": purpose.name.lower(),
                    "counter": [round_index, slot, int(purpose), 0],
                    "uniform": Uniforms(seed)(round_index, slot, purpose),
                }
            )
    return {"blocks": blocks, "uniforms": uniforms}


def drawing() -> dict[str, Cases]:
    """Inverse CDF: ascending ids, sums in float64, a boundary belongs to the token above it."""
    quarter = [0.25, 0.25, 0.25, 0.25]
    named: list[tuple[str, list[float], float]] = [
        ("zero picks the first token", quarter, 0.0),
        ("just below a boundary", quarter, 0.25 - 2**-54),
        ("a boundary belongs to the next token", quarter, 0.25),
        ("the largest uniform picks the last token", quarter, ALMOST_ONE),
        ("zero weights in front are never drawn", [0.0, 0.0, 0.5, 0.5], 0.0),
        ("zero weights at a boundary are skipped", [0.5, 0.0, 0.0, 0.5], 0.5),
        ("zero weights at the end are never drawn", [0.5, 0.5, 0.0, 0.0], ALMOST_ONE),
        ("weights need not sum to one", [1.0, 0.0, 3.0, 4.0], 0.5),
        ("tiny weights keep their shares", [2.0**-100, 2.0**-100, 2.0**-99], 0.5),
        ("one token holds everything", [0.0, 0.0, 1.0], 0.7),
        ("uniform x total rounds up to the total", [2.0**-149, 0.0], ALMOST_ONE),
        ("a weight too small for float32 sums still counts", [1.0, 2.0**-30, 1.0], 0.5 + 2.0**-33),
    ]
    numbers = random.Random(11)
    for index in range(12):
        weights = _weights(numbers, 16, zeros=0.3)
        named.append((f"random {index}", weights, numbers.random()))
    return {
        "cases": [
            {
                "name": name,
                "weights": float32_list(row(weights)),
                "uniform": u,
                "token": draw(row(weights), u),
            }
            for name, weights, u in named
        ]
    }


def acceptance() -> dict[str, Cases]:
    """`accept_or_resample`: both outcomes, the boundaries, and every kind of q."""
    half, third = [0.5, 0.5, 0.0, 0.0], [0.125, 0.25, 0.625, 0.0]
    above = float(torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)))
    below = float(torch.nextafter(torch.tensor(0.5), torch.tensor(0.0)))
    named: list[tuple[str, list[float], list[float], int, float, float]] = [
        ("p >= q is always accepted", third, half[::-1], 2, ALMOST_ONE, 0.0),
        ("p == q is always accepted", third, third, 1, ALMOST_ONE, 0.0),
        ("below p/q: accepted", [0.25, 0.75], [0.5, 0.5], 0, 0.5 - 2**-54, 0.0),
        ("exactly p/q: rejected", [0.25, 0.75], [0.5, 0.5], 0, 0.5, 0.0),
        ("p is zero: rejected even at u = 0", [0.0, 1.0], [0.5, 0.5], 0, 0.0, 0.3),
        ("one-hot q, as an argmax draft has: accepted", third, [0.0, 0.0, 1.0, 0.0], 2, 0.6, 0.0),
        ("one-hot q: rejected, residual is p without the token", third, [0.0, 0.0, 1.0, 0.0], 2, 0.7, 0.34),
        ("residual boundary belongs to the next token", third, [0.0, 0.0, 1.0, 0.0], 2, 0.7, 0.125 / 0.375),
        ("one-hot p and q that agree", [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], 1, ALMOST_ONE, 0.5),
        ("one-hot p and q that differ", [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], 2, 0.0, ALMOST_ONE),
        (
            "q is zero outside its vocabulary: residual holds all of p there",
            half,
            [0.0, 0.25, 0.75, 0.0],
            2,
            0.9,
            0.6,
        ),
        ("p == q, token of mass zero: residual is empty, p stands in", half, half, 3, 0.0, 0.75),
        (
            "q above p by rounding only: residual is empty, p stands in",
            half,
            [0.5, above, 0.0, 0.0],
            1,
            ALMOST_ONE,
            0.25,
        ),
        (
            "rounding leaves a tiny residual, and it is used",
            [above, below, 0.0, 0.0],
            half,
            1,
            ALMOST_ONE,
            0.9,
        ),
        ("residual at the very end", [0.25, 0.25, 0.5], [0.5, 0.5, 0.0], 0, 0.75, ALMOST_ONE),
        ("residual at the very beginning", [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], 1, 0.0, ALMOST_ONE),
    ]
    numbers = random.Random(12)
    for index in range(24):
        p_list, q_list = (_normalised(_weights(numbers, 12, zeros=0.3)) for _ in range(2))
        token = draw(row(q_list), numbers.random())
        named.append((f"random {index}", p_list, q_list, token, numbers.random(), numbers.random()))
    cases = []
    for name, p_list, q_list, token, u_accept, u_resample in named:
        p, q = row(p_list), row(q_list)
        accepted, result = accept_or_resample(p, q, token, u_accept, u_resample)
        case = {"name": name, "p": float32_list(p), "q": float32_list(q), "token": token}
        case |= {"u_accept": u_accept, "u_resample": u_resample, "accepted": accepted, "result": result}
        cases.append(case)
    return {"cases": cases}


def processors() -> dict[str, Cases]:
    """Logits -> probabilities: every processor alone and together, ties, tokens that cannot occur."""
    inf = float("inf")
    some = [2.0, -1.5, 0.25, 3.0, 0.0, 1.0, -0.5, 2.5]
    holes = [2.0, -inf, 0.25, -inf, 0.0, 1.0, -inf, 2.5]
    wide = [((i * 7919) % 5) / 4 for i in range(1100)]
    named: list[tuple[str, Sequence[float], dict[str, Any]]] = [
        ("greedy", some, specs.sampling()),
        ("greedy: the lowest index wins a tie", [1.0, 3.0, 0.0, 3.0], specs.sampling()),
        ("greedy: processors change nothing", some, specs.sampling(0.0, 2, 0.5, 0.5)),
        ("temperature 1", some, specs.sampling(1.0)),
        ("temperature below 1", some, specs.sampling(0.5)),
        ("temperature above 1", some, specs.sampling(2.0)),
        ("large logits do not overflow", [10_000.0, 9_999.0, -10_000.0], specs.sampling(1.0)),
        ("a low temperature leaves one token", some, specs.sampling(0.001)),
        ("-inf (null) has probability zero", holes, specs.sampling(1.0)),
        ("top-k 1", some, specs.sampling(1.0, 1)),
        ("top-k 3", some, specs.sampling(0.8, 3)),
        ("top-k as large as the vocabulary", some, specs.sampling(1.0, 8)),
        ("top-k larger than the vocabulary", some, specs.sampling(1.0, 100)),
        ("top-k with fewer finite logits", holes, specs.sampling(1.0, 7)),
        ("top-k: a tie at the cut keeps the lowest ids", [1.0, 2.0, 1.0, 1.0, 0.0], specs.sampling(1.0, 2)),
        ("top-k: all equal", [0.5] * 6, specs.sampling(1.0, 4)),
        ("top-p 0.9", some, specs.sampling(1.0, 0, 0.9)),
        ("top-p so small that one token is left", some, specs.sampling(1.0, 0, 0.01)),
        ("top-p: a mass reached exactly is enough", [0.0] * 4, specs.sampling(1.0, 0, 0.5)),
        (
            "top-p: a tie at the cut keeps the lowest ids",
            [1.0, 0.0, 1.0, 1.0, 1.0],
            specs.sampling(1.0, 0, 0.5),
        ),
        ("min-p 0.1", some, specs.sampling(1.0, 0, 1.0, 0.1)),
        ("min-p 1 keeps only ties with the largest", [2.0, 1.0, 2.0, 0.0], specs.sampling(1.0, 0, 1.0, 1.0)),
        ("top-k then top-p", some, specs.sampling(1.0, 4, 0.8)),
        ("top-p sees the temperature", some, specs.sampling(2.0, 0, 0.8)),
        ("top-p then min-p", some, specs.sampling(1.5, 0, 0.9, 0.15)),
        ("all processors", some, specs.sampling(0.7, 5, 0.9, 0.05)),
        ("a nucleus of more than 1024 tokens", wide, specs.sampling(1.0, 0, 0.99)),
    ]
    numbers = random.Random(13)
    for index, settings in enumerate(((0.7, 10, 1.0, 0.0), (1.0, 0, 0.9, 0.0), (1.3, 20, 0.95, 0.02))):
        logits_list = [round(numbers.gauss(0, 2) * 64) / 64 + i / 4096 for i in range(32)]
        named.append((f"random {index}", logits_list, specs.sampling(*settings)))
    cases = []
    for name, values, settings_spec in named:
        logits, sampling = row(values), specs.make_sampling(settings_spec)
        margin = cut_margin(logits, sampling)
        if 1e-9 < margin < LEAST_MARGIN:  # an exact tie is none by accident, and no rounding breaks it
            raise SpecdecError("a cut is too close to call on another processor", where=f"processors: {name}")
        probabilities = float32_list(distribution(logits, sampling))
        cases.append(
            {
                "name": name,
                "sampling": settings_spec,
                "logits": float32_list(logits),
                "probabilities": probabilities,
            }
        )
    return {"cases": cases}


def _weights(numbers: random.Random, count: int, *, zeros: float) -> list[float]:
    """Whole numbers, some of them zero, not all: their quotients are the same on every machine."""
    weights = [
        0.0 if numbers.random() < zeros else float(1 + int(numbers.random() * 100)) for _ in range(count)
    ]
    return weights if any(weights) else [1.0] * count


def _normalised(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


def as_row(weights: Sequence[float]) -> Tensor:
    """Whole-number weights as a float32 distribution."""
    return row(_normalised(weights))
