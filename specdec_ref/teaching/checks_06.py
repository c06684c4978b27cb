"""Checks of the exercises in notebook 06: rounding one group of weights, and what a weight costs in the file."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec_ref.teaching.exercise import ExerciseError, exercise_test, expect

Round = Callable[[Tensor, int], Tensor]
Cost = Callable[[int, int, bool], float]


# --- Exercise 1: one group on a grid ----------------------------------------------------------------------------------


def round_to_grid(weights: Tensor, bits: int) -> Tensor:
    """The nearest points of a grid with 2^bits points from the smallest weight to the largest."""
    low, high = weights.min(), weights.max()
    step = (high - low) / (2**bits - 1)
    if step == 0:
        return weights.clone()
    return low + step * ((weights - low) / step).round()


@exercise_test(round_to_grid)
def test_round_to_grid(attempt: Round) -> None:
    for weights, bits, expected, why in [
        ([0.0, 1.0, 2.0, 3.0], 2, [0.0, 1.0, 2.0, 3.0], "2 bits have 4 points: 0, 1, 2 and 3. All weights are on the grid."),
        ([-1.0, 0.2, 0.9, 2.0], 2, [-1.0, 0.0, 1.0, 2.0], "The points are -1, 0, 1 and 2; each weight goes to the nearest."),
        ([-0.5, 0.6, 1.0], 1, [-0.5, 1.0, 1.0], "1 bit has two points, the smallest and the largest weight."),
        ([0.0, 0.4, 7.0], 3, [0.0, 0.0, 7.0], "3 bits have 8 points, so 7 steps: the step is 1, and 0.4 is nearer to 0."),
        ([0.5, 0.5], 3, [0.5, 0.5], "All weights are the same: the step is 0, and there is nothing to divide by."),
    ]:  # fmt: skip
        got = attempt(torch.tensor(weights), bits)
        if not isinstance(got, Tensor) or got.shape != (len(weights),):
            raise ExerciseError(f"expected a tensor of {len(weights)} weights, but got {got!r}")
        expect(
            f"{weights} in {bits} bits", [round(w, 4) for w in got.tolist()], expected, why, tolerance=1e-4
        )


# --- Exercise 2: bits in the file -------------------------------------------------------------------------------------


def bits_per_weight(bits: int, group: int, symmetric: bool) -> float:
    """Bits of the code, and this weight's share of its group's 16-bit scale and, if asymmetric, 16-bit minimum."""
    return bits + (16 if symmetric else 32) / group


@exercise_test(bits_per_weight)
def test_bits_per_weight(attempt: Cost) -> None:
    for bits, group, symmetric, expected, why in [
        (4, 32, True, 4.5, "32 weights share one scale of 16 bits: half a bit each."),
        (4, 32, False, 5.0, "An asymmetric grid stores a scale and a minimum."),
        (3, 64, True, 3.25, "Larger groups share the scale among more weights."),
        (8, 128, False, 8.25, "32 bits shared by 128 weights are a quarter of a bit."),
    ]:
        what = f"{bits} bits, group {group}, {'symmetric' if symmetric else 'asymmetric'}"
        expect(what, attempt(bits, group, symmetric), expected, why, tolerance=1e-9)
