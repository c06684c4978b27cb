"""Feature-level drafts for tests: random ones, and a target made of a table that has features."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from specdec_ref.feature_draft import FeatureConfig, FeatureDraft
from specdec_ref.model import ModelConfig
from tests.helpers.models import TableModel, tiny_config


def feature_config(
    target: ModelConfig, *, taps: Sequence[int], head_rows: int, layers: int = 2, context: int = 128
) -> FeatureConfig:
    """A draft of width 16 with grouped queries for a target of that shape."""
    shape = vars(tiny_config(target.vocab_size, layers=layers, context=context, head_rows=head_rows))
    return FeatureConfig(**shape, target_width=target.hidden_size, taps=tuple(taps))


def random_feature_draft(
    config: FeatureConfig,
    seed: int,
    *,
    head_ids: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> FeatureDraft:
    """Random weights; float64 by default."""
    generator = torch.Generator().manual_seed(seed)
    model = FeatureDraft(config)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = "norm" in name
        parameter.data = (noise * (0.1 if norm else 1.5 * parameter.shape[-1] ** -0.5) + norm).to(dtype)
    if head_ids is not None:
        model.head_ids = torch.tensor(head_ids)
    return model


class TableWithFeatures(TableModel):
    """A Markov chain whose feature of a token is its one-hot row, as is its embedding."""

    def __init__(self, logits: Tensor, *, capacity: int = 4096) -> None:
        super().__init__(logits, capacity=capacity)
        vocab = self.vocab_size
        self.model = SimpleNamespace(
            config=SimpleNamespace(hidden_size=vocab, vocab_size=vocab), layers=[], embed=torch.eye(vocab)
        )

    def keep_features(self, taps: Sequence[int]) -> None:
        assert tuple(taps) == (0,)

    def features(self, start: int, stop: int) -> Tensor:
        assert stop <= self.length
        return self.model.embed[self.held[start:stop]]
