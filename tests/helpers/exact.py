"""The exact output distribution of an acceptance step: drafted tokens enumerated, both uniforms integrated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from tests.helpers.planted_judges import Judge

Value = TypeVar("Value")
_WIDTH = 2.0**-32


def steps(function: Callable[[float], Value], low: float, high: float) -> list[tuple[float, float, Value]]:
    """The pieces (low, high, value) of a monotone step function on [low, high), jumps found by bisection."""
    first, last = function(low), function(high - 2.0**-53)
    if first == last:
        return [(low, high, first)]
    middle = (low + high) / 2
    if high - low < _WIDTH:
        return [(low, middle, first), (middle, high, last)]
    return steps(function, low, middle) + steps(function, middle, high)


def output_law(judge: Judge, p: Tensor, q: Tensor) -> np.ndarray:
    """The probability [V] of each token that `judge` returns when the drafted one is drawn from q.

    Exact to about 1e-9 for any judge whose decision is monotone in u_accept and whose replacement is monotone in either
    uniform, which inverse CDFs are.
    """
    law = np.zeros(len(p))
    for token in q.nonzero().flatten().tolist():
        share = float(q[token])
        for low, high, accepted in steps(lambda u, x=token: judge(p, q, x, u, 0.5)[0], 0.0, 1.0):
            if accepted:
                law[token] += share * (high - low)
                continue
            for a, b, _ in steps(lambda u, x=token: judge(p, q, x, u, 0.5)[1], low, high):
                for c, d, other in steps(lambda r, x=token, u=(a + b) / 2: judge(p, q, x, u, r)[1], 0.0, 1.0):
                    law[other] += share * (b - a) * (d - c)
    return law


def random_distribution(seed: int, vocab: int, *, spread: float = 1.5, zeros: int = 0) -> Tensor:
    """A float32 distribution [vocab] with that many tokens of probability 0."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(vocab, generator=generator)
    if zeros:
        logits[torch.randperm(vocab, generator=generator)[:zeros]] = -torch.inf
    return logits.double().softmax(-1).float()
