"""Optimisers, schedule, clipping with a guard against non-finite gradients, and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from specdec_ref.distill.config import TrainConfig


def optimisers_for(draft: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the body, AdamW for embedding, head and norms (Jordan et al., 2024)."""
    named = [(name, p) for name, p in draft.named_parameters() if p.requires_grad]

    def is_matrix(name: str, p: Tensor) -> bool:
        return p.dim() == 2 and name not in ("embed", "head.weight")

    matrices = [p for name, p in named if is_matrix(name, p)]
    others = [p for name, p in named if not is_matrix(name, p)]
    return [
        torch.optim.Muon(
            matrices,
            lr=config.muon_lr,
            momentum=0.95,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        ),
        torch.optim.AdamW(
            others, lr=config.adam_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=others[0].is_cuda
        ),
    ]


def peak_rates(config: TrainConfig) -> list[float]:
    """Peak learning rates in the order of `optimisers_for`."""
    return [config.muon_lr, config.adam_lr]


def rate_factor(step: int, progress: float, config: TrainConfig) -> float:
    """Share of the peak rate: linear warm-up by steps, then a cosine over the whole schedule."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
    return min(1.0, (step + 1) / max(1, config.warmup)) * (config.final_lr + (1 - config.final_lr) * cosine)


@torch.no_grad()
def clip_and_guard(parameters: list[nn.Parameter], limit: float) -> tuple[Tensor, Tensor]:
    """Clip gradients to `limit`, or zero them all if any is not finite, without waiting for the GPU.

    Returns:
        the norm before clipping, and 1 if the gradients were dropped (both scalars on the device).
    """
    norm = nn.utils.clip_grad_norm_(parameters, limit, foreach=True)
    bad = ~torch.isfinite(norm)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.masked_fill_(bad, 0.0)
    return norm, bad.float()


class Average:
    """Exponential moving average of a draft's weights; the plain weights while `decay` is 0.

    Args:
        parameters: name -> parameter.
        decay: of the average; it starts lower, so that the first weights are soon forgotten.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, parameters: Mapping[str, Tensor], step: int) -> None:
        """Take in the weights after optimiser step number `step`, from 0."""
        decay = min(self.decay, (1 + step) / (10 + step)) if self.decay else 0.0
        averaged = list(self.weights.values())
        torch._foreach_lerp_(averaged, [parameters[name].detach() for name in self.weights], 1 - decay)

    @torch.no_grad()
    def exchange(self, parameters: Mapping[str, Tensor]) -> None:
        """Swap the averaged weights with the parameters; a second call swaps them back."""
        for name, value in self.weights.items():
            mine = value.clone()
            value.copy_(parameters[name])
            parameters[name].copy_(mine)

    def state_dict(self) -> dict[str, Any]:
        """The averaged weights by name."""
        return dict(self.weights)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict`."""
        for name, value in state.items():
            self.weights[name].copy_(value)
