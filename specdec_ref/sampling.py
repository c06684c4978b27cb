"""From logits to ONE float32 distribution, the same way for target and draft.

Losslessness needs the q that a draft token is drawn from and the q in the acceptance ratio to be the same numbers, and p to
have been processed exactly like q. So there is one function, called once per model and position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_ref.errors import SpecdecError, UsageError

_CANDIDATES = 1024


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. The processors apply in field order; the defaults mean greedy decoding.

    Attributes:
        temperature: logits are divided by it; 0 puts all mass on the largest logit (greedy).
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose mass reaches it (Holtzman et al., 2019); 1 keeps all.
        min_p: drop tokens less likely than this fraction of the most likely one; 0 drops none.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if self.top_k < 0 or self.top_k != int(self.top_k):
            raise UsageError(f"top-k must be a whole number >= 0, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UsageError(f"min-p must be in [0, 1], got {self.min_p}")

    @property
    def greedy(self) -> bool:
        """Whether every choice is the largest logit."""
        return self.temperature == 0


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """The probabilities tokens are drawn from: temperature, then top-k, then top-p, then min-p, then normalised.

    Ties at a cut are broken by the lowest token id, as in every language of this kit.

    Args:
        logits: [V] or [T, V], any floating dtype; -inf marks tokens that cannot occur.
        sampling: temperature and processors.

    Returns:
        float32 probabilities of the same shape.
    """
    if logits.dim() == 2:
        return torch.stack([distribution(row, sampling) for row in logits])
    if sampling.greedy:
        return torch.zeros(logits.shape, dtype=torch.float32).index_fill_(0, logits.argmax(), 1.0)
    if logits.max().isnan():
        raise SpecdecError("the model returned NaN logits", fix="run it in float32, or check the weights")
    scaled = logits.float() / sampling.temperature
    if not torch.isfinite(scaled.max()):  # so cold that the division overflows: the limit is greedy
        return distribution(logits, Sampling())
    if 0 < sampling.top_k < scaled.numel():
        scaled = _keep_top_k(scaled, sampling.top_k)
    probabilities = scaled.softmax(-1)
    if sampling.top_p < 1:
        probabilities = _keep_top_p(probabilities, sampling.top_p)
    if sampling.min_p > 0:
        probabilities = probabilities.masked_fill(probabilities < sampling.min_p * probabilities.max(), 0.0)
    total = probabilities.sum(dtype=torch.float64)
    return (probabilities.double() / total).float()


def _keep_top_k(logits: Tensor, k: int) -> Tensor:
    smallest = logits.topk(k).values[-1]
    kept = logits > smallest
    ties = (logits == smallest).nonzero().flatten()[: k - int(kept.sum())]
    return logits.masked_fill(~kept.index_fill_(0, ties, True), -torch.inf)


def _keep_top_p(probabilities: Tensor, top_p: float) -> Tensor:
    # Sorting 49k tokens costs milliseconds and the nucleus is nearly always among the first 1024: try those first.
    for count in (min(_CANDIDATES, probabilities.numel()), probabilities.numel()):
        smallest = probabilities.topk(count).values[-1]
        ids = (
            (probabilities >= smallest).nonzero().flatten()
        )  # ascending, so a stable sort breaks ties by lowest id
        ids = ids[probabilities[ids].sort(descending=True, stable=True).indices]
        mass = probabilities[ids].cumsum(0, dtype=torch.float64)
        if count == probabilities.numel() or mass[-1] >= top_p:
            break
    wanted = int(torch.searchsorted(mass, torch.tensor(top_p, dtype=torch.float64))) + 1
    kept = ids[:wanted]
    return torch.zeros_like(probabilities).index_copy_(0, kept, probabilities[kept])


def draw(weights: Tensor, uniform: float) -> int:
    """The token that `uniform` picks: inverse CDF over ascending ids, sums in float64.

    Args:
        weights: [V] non-negative, not all zero; they need not sum to one.
        uniform: in [0, 1).

    Returns:
        a token id of non-zero weight.
    """
    mass = weights.cumsum(0, dtype=torch.float64)
    token = int(torch.searchsorted(mass, uniform * mass[-1], right=True))
    if token == len(weights):  # uniform * total rounded up to total
        token = int(weights.nonzero()[-1])
    return token
