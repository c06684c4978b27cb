"""Faulty versions of the pure acceptance step. Tests assert that the checks reject each of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdec_ref.acceptance import accept_or_resample
from specdec_ref.sampling import draw

Judge = Callable[[Tensor, Tensor, int, float, float], tuple[bool, int]]


def residual_is_p(p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float) -> tuple[bool, int]:
    """F4: resamples from p itself, as if acceptance had not already handed out min(p, q)."""
    if u_accept * float(q[token]) < float(p[token]):
        return True, token
    return False, draw(p, u_resample)


def residual_never_falls_back(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float
) -> tuple[bool, int]:
    """F4: normalises the residual without asking whether anything is left of it."""
    if u_accept * float(q[token]) < float(p[token]):
        return True, token
    residual = (p.double() - q.double()).clamp(min=0)
    return False, int(torch.searchsorted((residual / residual.sum()).cumsum(0), u_resample, right=True))


def residual_is_q_minus_p(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float
) -> tuple[bool, int]:
    """p and q swapped against the papers in the residual."""
    accepted, replacement = accept_or_resample(p, q, token, u_accept, u_resample)
    return (
        (True, token)
        if accepted
        else (False, accept_or_resample(q, p, replacement, 1 - 2**-53, u_resample)[1])
    )


def correction_reuses_u_accept(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float
) -> tuple[bool, int]:
    """Resamples with the number that rejected the token, which is known to be large by then."""
    return accept_or_resample(p, q, token, u_accept, u_accept)


def correction_is_argmax(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float
) -> tuple[bool, int]:
    """The textbook loop that appends the target's argmax after a rejection even when sampling."""
    accepted, _ = accept_or_resample(p, q, token, u_accept, u_resample)
    return (True, token) if accepted else (False, int(p.argmax()))


def accepts_when_p_is_larger(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float
) -> tuple[bool, int]:
    """A threshold instead of a probability."""
    if float(q[token]) <= float(p[token]):
        return True, token
    return accept_or_resample(p, q, token, 1 - 2**-53, u_resample)


def ratio_the_wrong_way_round(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float
) -> tuple[bool, int]:
    """min(1, q/p)."""
    if u_accept * float(p[token]) < float(q[token]):
        return True, token
    return accept_or_resample(p, q, token, 1 - 2**-53, u_resample)


JUDGES: dict[str, Judge] = {
    judge.__name__: judge
    for judge in (
        residual_is_p,
        residual_is_q_minus_p,
        correction_reuses_u_accept,
        correction_is_argmax,
        accepts_when_p_is_larger,
        ratio_the_wrong_way_round,
    )
}
"""Those that bias the output whenever p and q differ (`residual_never_falls_back` needs p and q to be equal)."""
