"""Checks of the exercises in notebook 03: the acceptance step, top-p, and the expected rate of acceptance.

The acceptance step is judged by what it does: which tokens it keeps, and the exact law of what it returns. Any correct way of
writing it passes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec_ref.acceptance import accept_or_resample
from specdec_ref.teaching.exercise import ExerciseError, exercise_test

Judge = Callable[[Tensor, Tensor, int, float, float], tuple[bool, int]]
Filter = Callable[[Tensor, float], Tensor]
Rate = Callable[[Tensor, Tensor], float]

_ALMOST_ONE = 1 - 2.0**-53


# --- Exercise 1: accept or resample -----------------------------------------------------------------------------------

_P = torch.tensor([0.10, 0.45, 0.25, 0.20, 0.00])
_Q = torch.tensor([0.40, 0.20, 0.25, 0.05, 0.10])
_GRID = 48


def accept_problems(candidate: Judge) -> list[str]:
    """What is wrong with an answer to exercise 1; empty if nothing is."""
    return _rule(candidate) or [*_law(candidate), *_fallback(candidate)]


@exercise_test(accept_or_resample)
def test_accept(attempt: Judge) -> None:
    """Exercise 1."""
    _refuse(accept_problems(attempt))


def _rule(candidate: Judge) -> list[str]:
    problems = []
    for token, u, wanted, why in [
        (1, 0.99, True, "p > q: always accepted"),
        (2, 0.99, True, "p = q: always accepted"),
        (0, 0.24, True, "p/q = 0.25 and u is below it"),
        (0, 0.26, False, "p/q = 0.25 and u is above it"),
        (4, 0.00, False, "p = 0: never accepted, not even for u = 0"),
    ]:
        got = candidate(_P, _Q, token, u, 0.5)
        shape = isinstance(got, tuple) and len(got) == 2
        if not shape or bool(got[0]) is not wanted:
            problems.append(
                f"token {token}, u_accept {u}: expected {'accept' if wanted else 'reject'} ({why}), got {got}"
            )
        elif wanted and int(got[1]) != token:
            problems.append(f"token {token} was accepted, but {got[1]} came back")
    return problems


def _law(candidate: Judge) -> list[str]:
    """The law of the returned token: drafts enumerated, both uniforms on a grid."""
    law = torch.zeros(len(_P), dtype=torch.float64)
    middles = [(i + 0.5) / _GRID for i in range(_GRID)]
    idle = True
    for token in range(len(_Q)):
        for u in middles:
            accepted, first = candidate(_P, _Q, token, u, middles[0])
            if accepted:
                law[first] += float(_Q[token]) / _GRID
                continue
            others = [int(candidate(_P, _Q, token, u, v)[1]) for v in middles]
            idle = idle and len(set(others)) == 1
            for other in others:
                law[other] += float(_Q[token]) / _GRID**2
    if idle:
        return [
            "after a rejection the replacement never depends on u_resample: a number that has already rejected a token "
            "is known to be large and cannot serve again"
        ]
    off = float((law - _P.double()).abs().sum()) / 2
    if off < 0.02:
        return []
    return [
        f"p is {_list(_P)}, but the returned tokens are distributed as {_list(law)}: after a rejection only what acceptance "
        "left out, max(p - q, 0), may be handed out"
    ]


def _fallback(candidate: Judge) -> list[str]:
    p = torch.tensor([0.5, 0.5, 0.0])
    q = torch.tensor(
        [0.5 + 2.0**-24, 0.5, 0.0]
    )  # one step of float32 above p: the same law, but for rounding
    what = "p and q equal but for rounding, rejected at u_accept just below 1: no residual is left, and p must stand in"
    for u, wanted in [(0.25, 0), (0.75, 1)]:
        try:
            got = candidate(p, q, 0, _ALMOST_ONE, u)
        except Exception as error:  # whatever an empty residual leads to
            return [f"{what}; it raised {type(error).__name__}: {error}"]
        if got[0] or int(got[1]) != wanted:
            return [f"{what}; u_resample {u} should give token {wanted}, got {got}"]
    return []


# --- Exercise 2: the expected rate of acceptance ----------------------------------------------------------------------


def acceptance_rate(p: Tensor, q: Tensor) -> float:
    """Probability that a token drawn from q is accepted: 1 - TV(p, q)."""
    return float(torch.minimum(p, q).sum())


def rate_problems(candidate: Rate) -> list[str]:
    """What is wrong with an answer to exercise 2; empty if nothing is."""
    one_hot = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    problems = []
    for q, wanted, why in [
        (_P, 1.0, "p = q: every draft is accepted"),
        (_Q, 0.60, "0.10 + 0.20 + 0.25 + 0.05 + 0.00"),
        (one_hot, 0.45, "an argmax draft has a one-hot q: accepted with probability p[token]"),
        (torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]), 0.0, "p and q have nothing in common"),
    ]:
        got = candidate(_P, q)
        if got is None or not abs(float(got) - wanted) < 1e-5:
            problems.append(f"p {_list(_P)}, q {_list(q)}: expected {wanted:.2f}, got {got} ({why})")
    return problems


@exercise_test(acceptance_rate)
def test_rate(attempt: Rate) -> None:
    """Exercise 2."""
    _refuse(rate_problems(attempt))


# --- Exercise 3: top-p ------------------------------------------------------------------------------------------------


def keep_top_p(probabilities: Tensor, top_p: float) -> Tensor:
    """The smallest set of most likely tokens whose mass reaches top_p, normalised; ties go to the lowest id."""
    order = probabilities.sort(descending=True, stable=True).indices
    before = probabilities[order].cumsum(0) - probabilities[order]
    kept = order[before < top_p]
    result = torch.zeros_like(probabilities)
    result[kept] = probabilities[kept]
    return result / result.sum()


def top_p_problems(candidate: Filter) -> list[str]:
    """What is wrong with an answer to exercise 3; empty if nothing is."""
    problems = []
    for values, top_p, kept, why in [
        (
            [0.125, 0.5, 0.125, 0.25],
            0.6,
            [1, 3],
            "0.5 does not reach 0.6; the token that crosses the line is kept",
        ),
        ([0.125, 0.5, 0.125, 0.25], 0.75, [1, 3], "0.5 + 0.25 reaches 0.75 exactly"),
        ([0.125, 0.5, 0.125, 0.25], 0.80, [0, 1, 3], "tokens 0 and 2 are equally likely: the lowest id wins"),
        ([0.125, 0.5, 0.125, 0.25], 1.0, [0, 1, 2, 3], "1 keeps all"),
        ([0.125, 0.5, 0.125, 0.25], 0.1, [1], "one token is always left"),
    ]:
        p = torch.tensor(values)
        wanted = torch.zeros_like(p)
        wanted[kept] = p[kept] / p[kept].sum()
        got = candidate(p.clone(), top_p)
        if not isinstance(got, Tensor) or got.shape != p.shape or not torch.allclose(got, wanted, atol=1e-6):
            shown = _list(got) if isinstance(got, Tensor) and got.dim() == 1 else got
            problems.append(f"p {values}, top_p {top_p}: expected {_list(wanted)}, got {shown} ({why})")
    return problems


@exercise_test(keep_top_p)
def test_top_p(attempt: Filter) -> None:
    """Exercise 3."""
    _refuse(top_p_problems(attempt))


def _list(values: Tensor) -> str:
    return "[" + ", ".join(f"{float(value):.2f}" for value in values) + "]"


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ExerciseError(problems[0])
