"""The distillation loss of an output head: figures and gradients in one pass, and no second copy of the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_ref.distill.kernels import kd_rows


@dataclass(frozen=True)
class Mix:
    """Weights of the two terms: KL(p' || q) and total variation, 1 - sum min(p, q)."""

    kl: float = 1.0
    tv: float = 0.0


def mix_at(progress: float, tv_from: float, tv_weight: float, kl_end: float) -> Mix:
    """The weights at a point of the schedule: KL alone, then total variation ramps up while KL goes down to `kl_end`."""
    if tv_from >= 1 or progress <= tv_from:
        return Mix()
    ramp = min(1.0, (progress - tv_from) / (0.5 * (1 - tv_from)))
    return Mix(1 + ramp * (kl_end - 1), ramp * tv_weight)


class HeadLoss(torch.autograd.Function):
    """Mean loss over rows of `hidden @ weight.T` against the teacher's logits.

    The gradients of `hidden` and `weight` are worked out in the forward pass, where the logits' memory is at hand.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, teacher: Tensor, lse: Tensor, top: Tensor, row_weight: Tensor,
        mix: Mix, figures: list[Tensor],
    ) -> Tensor:  # fmt: skip
        """hidden [N, D], weight [V', D], teacher [N, V], lse/top/row_weight [N] -> scalar; appends [N, 3] figures."""
        cast = weight.to(hidden.dtype)
        logits = hidden @ cast.t()
        rows = kd_rows(logits, teacher, lse, top, row_weight / hidden.shape[0], mix.kl, mix.tv)
        ctx.save_for_backward(logits @ cast, logits.t() @ hidden)
        ctx.weight_dtype = weight.dtype
        figures.append(rows)
        return (row_weight * (mix.kl * rows[:, 0] + mix.tv * (1 - rows[:, 1]))).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """Scale the gradients of the forward pass."""
        (gradient,) = gradients
        hidden, weight = ctx.saved_tensors
        return (
            (gradient * hidden).to(hidden.dtype),
            (gradient * weight).to(ctx.weight_dtype),
            None,
            None,
            None,
            None,
            None,
            None,
        )


def head_loss_autograd(
    hidden: Tensor, weight: Tensor, teacher: Tensor, lse: Tensor, row_weight: Tensor, mix: Mix
) -> Tensor:
    """The same loss written plainly, differentiated by autograd: the oracle of tests and of `selfcheck`."""
    head = teacher[:, : weight.shape[0]].float()
    log_q, log_head = (hidden.float() @ weight.float().t()).log_softmax(-1), head.log_softmax(-1)
    kl = (log_head.exp() * (log_head - log_q)).sum(-1)
    overlap = torch.minimum(log_q.exp(), (head - lse[:, None]).exp()).sum(-1)
    return (row_weight * (mix.kl * kl + mix.tv * (1 - overlap))).mean()
