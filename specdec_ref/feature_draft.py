"""A draft that reads the target's hidden states instead of the text alone (EAGLE-3, Li et al., 2025).

Row t of the draft belongs to token t of the text: it combines what the target made of token t (its *feature*) with the
embedding of token t+1, and predicts token t+2. Where the target has not been yet, the draft's own output takes the place
of the feature. Embeddings are the target's own, so the draft stores none.

Shapes: T tokens, D the draft's width, W the target's, R rows of the reduced head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.kv_cache import KVCache
from specdec_ref.linear import Linear, small_linear
from specdec_ref.model import Layer, ModelConfig, Norm, Stack

MODEL_TYPE = "specdec_feature_draft"
"""`model_type` in such a draft's config.json: nothing else should take it for a language model."""


@dataclass(frozen=True)
class FeatureConfig(ModelConfig):
    """Shapes of the draft's blocks and head (as in `ModelConfig`, `head_rows` is needed) and of what feeds them.

    Attributes:
        target_width: W.
        taps: after how many of the target's blocks its residual stream is read, ascending.
    """

    target_width: int = 0
    taps: tuple[int, ...] = ()

    @property
    def body_parameters(self) -> int:
        """Parameters read for every token, the head left out: the blocks, and everything that feeds them.

        The fusing matrix is counted in full, though only tokens that the target has seen pass through it.
        """
        d, w, n = self.hidden_size, self.target_width, len(self.taps)
        return super().body_parameters + n * w * d + (w + d) * d + (n + 1) * w + d


class FeatureDraft(Stack):
    """Features and embeddings in, next feature and logits out.

    Weights are frozen, as in `Decoder`.
    """

    config: FeatureConfig
    head_ids: Tensor

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        assert config.head_rows is not None and config.taps
        self.config = config
        d, w = config.hidden_size, config.target_width
        self.tap_norms = nn.ModuleList(Norm(w, config.rms_norm_eps) for _ in config.taps)
        self.fuse = Linear(len(config.taps) * w, d)
        self.embed_norm = Norm(w, config.rms_norm_eps)
        self.feature_norm = Norm(d, config.rms_norm_eps)
        self.combine = Linear(w + d, d)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(d, config.rms_norm_eps)
        self.head = Linear(d, config.head_rows)
        self.register_buffer("head_ids", torch.arange(config.head_rows), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type that weights and activations have."""
        return self.head.weight.dtype

    def check_fits(self, target: Stack) -> None:
        """Raise `UsageError` unless this target has the blocks that the draft reads, in its width."""
        c, width, blocks = self.config, target.config.hidden_size, len(target.layers)
        if width != c.target_width or max(c.taps) > blocks:
            raise UsageError(
                f"the draft reads features of width {c.target_width} after {max(c.taps)} blocks, the target has "
                f"{blocks} blocks of width {width}",
                fix="use the target that the draft was trained with",
            )

    def feature(self, tapped: Tensor) -> Tensor:
        """Fuse what the target's taps gave.

        Args:
            tapped: [..., T, taps x W], the taps side by side.

        Returns:
            [..., T, D]
        """
        parts = tapped.split(self.config.target_width, dim=-1)
        return self.fuse(
            torch.cat([norm(part) for norm, part in zip(self.tap_norms, parts, strict=True)], -1)
        )

    def inputs(self, feature: Tensor, embedded: Tensor) -> Tensor:
        """What goes into the first block [..., T, D].

        Args:
            feature: [..., T, D] of each token: fused, or the draft's own.
            embedded: [..., T, W] the target's embedding of the token *after* each.
        """
        return self.combine(torch.cat([self.embed_norm(embedded), self.feature_norm(feature)], -1))

    def forward(self, feature: Tensor, embedded: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return the draft's own features [..., T, D]: they stand in for the target's at the next tokens.

        Args:
            feature, embedded: as in `inputs`; T tokens that follow what `cache` holds.
            cache: as in `Decoder.forward`.
        """
        return self.stream(self.inputs(feature, embedded), cache)

    def logits(self, feature: Tensor) -> Tensor:
        """Own features [..., T, D] -> logits [..., T, R] of the tokens `head_ids`."""
        return small_linear(self.norm(feature), self.head.weight)

    def load_weights(self, tensors: Mapping[str, Tensor], *, where: str = "checkpoint") -> FeatureDraft:
        """Copy tensors by the names of `named_tensors` into this model, each checked for presence and shape.

        Raises:
            CheckpointError: a tensor is missing, has another shape, or holds a value that is not finite.
        """
        with torch.no_grad():
            for name, mine in self.named_tensors().items():
                if name not in tensors:
                    raise CheckpointError(
                        f"tensor {name!r} is missing", where=where, fix="take a complete copy of the draft"
                    )
                tensor = tensors[name]
                if tensor.shape != mine.shape:
                    raise CheckpointError(
                        f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {tuple(mine.shape)}",
                        where=where,
                        fix="config.json and the weights are not of the same draft",
                    )
                if not torch.isfinite(tensor).all():
                    raise CheckpointError(
                        f"tensor {name!r} holds NaN or infinity",
                        where=where,
                        fix="take a sound copy of the file",
                    )
                mine.copy_(tensor)
        return self

    def named_tensors(self) -> dict[str, Tensor]:
        """All weights and the head's token ids by the names they have in a file: those of the module's own tree."""
        return {"specdec.head_ids": self.head_ids, **dict(self.named_parameters())}
