"""A feature-level draft over whole sequences, unrolled: the same parameters as when it drafts (tested), all rows at once."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.distill.blocks import Trunk, causal
from specdec_ref.distill.unrolled_attention import unrolled_attention
from specdec_ref.feature_draft import FeatureDraft
from specdec_ref.model import Norm


class FeatureTrunk(Trunk):
    """Runs a `FeatureDraft` as it will run on its own guesses: training-time test (EAGLE-3, Li et al., 2025).

    Step 0 gives every row the target's feature; step s gives it the draft's own output of step s-1 and the text's token
    s + 1 places on, so that all rows take their s-th drafted token at once.

    Args:
        draft, positions, dtype, fuse: as in `Trunk`.
        flash: as in `unrolled_attention`.
    """

    def __init__(
        self,
        draft: FeatureDraft,
        positions: int,
        dtype: torch.dtype,
        *,
        fuse: bool = False,
        flash: bool | None = None,
    ) -> None:
        super().__init__(draft, positions, dtype, fuse=fuse)
        self.flash = flash

    @property
    def head(self) -> Tensor:
        """[R, D] output head, in the order of the teacher's columns."""
        return self._draft.head.weight

    def unroll(self, taps: dict[int, Tensor], batch: int, steps: int) -> list[Tensor]:
        """Hidden states under the head, [B T, D] for each step; row t of step s predicts token t + s + 2 of its sequence.

        Args:
            taps: [B T, W] streams of the target by number of blocks; 0, the embedding, is needed besides the draft's own.
            batch: B.
            steps: how many tokens are drafted. The last `step` + 1 rows of a sequence have no token to look at: they see
                some other and must have no weight.
        """
        draft = self._draft
        embedded = self._normed(taps[0].to(self.dtype), draft.embed_norm.weight)
        feature = self._fused([taps[index].to(self.dtype) for index in draft.config.taps])
        keys: list[list[Tensor]] = [[] for _ in draft.layers]
        values: list[list[Tensor]] = [[] for _ in draft.layers]

        def attend(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys[index].append(k)
            values[index].append(v)
            if len(keys[index]) == 1:
                return causal(index, q, k, v)
            return unrolled_attention(q, keys[index], values[index], flash=self.flash)

        hiddens = []
        for step in range(steps):
            following = embedded.roll(-(step + 1), 0)
            x = torch.cat([following, self._normed(feature, draft.feature_norm.weight)], -1)
            x = F.linear(x, draft.combine.weight.to(self.dtype))
            feature = self.stream(x, batch, first=step, attend=attend)
            hiddens.append(self.normalised(feature))
        return hiddens

    @property
    def _draft(self) -> FeatureDraft:
        assert isinstance(self.model, FeatureDraft)
        return self.model

    def _fused(self, parts: list[Tensor]) -> Tensor:
        weights = [cast(Norm, norm).weight for norm in self._draft.tap_norms]
        normed = [self._normed(x, weight) for x, weight in zip(parts, weights, strict=True)]
        return F.linear(torch.cat(normed, -1), self._draft.fuse.weight.to(self.dtype))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight.to(self.dtype), self._draft.config.rms_norm_eps)
