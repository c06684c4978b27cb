"""Checks of the exercises in notebook 05: the distillation loss, and the acceptance that two distributions allow."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec_ref.teaching.exercise import exercise_test, expect

OfTwo = Callable[[Tensor, Tensor], Tensor]


def _rows(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# --- Exercise 1: the loss ---------------------------------------------------------------------------------------------


def distillation_loss(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) of each row, averaged over rows (Hinton et al., 2015)."""
    return (p * (p.log() - q.log())).sum(-1).mean()


@exercise_test(distillation_loss)
def test_distillation_loss(attempt: OfTwo) -> None:
    even, sure = _rows([0.5, 0.5]), _rows([0.9, 0.1])
    for what, p, q, expected, why in [
        ("p = q", sure, sure, 0.0, "Nothing is left to learn where the draft says what the target says."),
        (
            "p = [0.9, 0.1], q = [0.5, 0.5]",
            sure,
            even,
            0.3681,
            "0.9 log(0.9 / 0.5) + 0.1 log(0.1 / 0.5): all of the row counts, summed over tokens.",
        ),
        (
            "p = [0.5, 0.5], q = [0.9, 0.1]",
            even,
            sure,
            0.5108,
            "The target's probabilities are the weights; the other way round is another loss.",
        ),
        (
            "two rows, one of them perfect",
            torch.cat([sure, sure]),
            torch.cat([even, sure]),
            0.1840,
            "Average over rows, so that the loss does not grow with the batch.",
        ),
    ]:
        expect(what, round(float(attempt(p, q)), 4), expected, why, tolerance=2e-4)


# --- Exercise 2: acceptance -------------------------------------------------------------------------------------------


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Probability that a token drawn from q survives judgement by p: sum of min(p, q), averaged over rows."""
    return torch.minimum(p, q).sum(-1).mean()


@exercise_test(acceptance)
def test_acceptance(attempt: OfTwo) -> None:
    for what, p, q, expected, why in [
        ("p = q", _rows([0.6, 0.4]), _rows([0.6, 0.4]), 1.0, "A draft that says what the target says is never rejected."),
        ("no token in common", _rows([1.0, 0.0]), _rows([0.0, 1.0]), 0.0, "p is 0 wherever the draft goes."),
        (
            "p = [0.7, 0.2, 0.1], q = [0.2, 0.5, 0.3]",
            _rows([0.7, 0.2, 0.1]),
            _rows([0.2, 0.5, 0.3]),
            0.5,
            "Token by token, q's share is accepted with min(1, p / q): that is min(p, q), here 0.2 + 0.2 + 0.1.",
        ),
        (
            "two rows",
            _rows([0.6, 0.4], [1.0, 0.0]),
            _rows([0.6, 0.4], [0.5, 0.5]),
            0.75,
            "Average over rows: 1.0 and 0.5.",
        ),
    ]:  # fmt: skip
        expect(what, round(float(attempt(p, q)), 4), expected, why, tolerance=2e-4)
