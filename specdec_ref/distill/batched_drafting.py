"""The two kinds of draft over many texts: one that reads the text, one that reads the target's features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.distill.batched_runner import BatchedRunner
from specdec_ref.feature_draft import FeatureDraft
from specdec_ref.model import Decoder


class PlainDrafting:
    """A draft model beside its target: fed with the text, then with its own tokens.

    Args:
        draft: the model.
        capacity: of its cache.
        padded: [B, T] prompts.
    """

    def __init__(self, draft: Decoder, capacity: int, padded: Tensor) -> None:
        self.draft, self.runner = draft, BatchedRunner(draft, len(padded), capacity)
        self.runner.hidden(padded, torch.zeros_like(padded[:, 0]))

    def first(self, texts: Sequence[list[int]], length: Tensor) -> Tensor:
        """Logits [B, V'] of the first token to draft after these texts, of `length` [B] tokens."""
        # The last but one token again: it may not have been fed in the last round.
        last = torch.tensor([text[-2:] for text in texts], device=length.device)
        self._end = length
        return self.draft.logits(self.runner.hidden(last, length - 2)[:, -1])

    def then(self, token: Tensor) -> Tensor:
        """Logits [B, V'] of the token after the drafted one [B]."""
        self._end = self._end + 1
        return self.draft.logits(self.runner.hidden(token[:, None], self._end - 1)[:, -1])


class FeatureDrafting:
    """A feature-level draft: as `FeatureDrafter`, for many texts.

    Every round makes the rows of the last K+1 tokens anew, which is at least those that the target has seen since.

    Args:
        draft, capacity, padded: as in `PlainDrafting`.
        wide: the target's runner, which has taken in the prompts and keeps the draft's features.
        lookahead: K.
    """

    def __init__(
        self, draft: FeatureDraft, wide: BatchedRunner, capacity: int, padded: Tensor, lookahead: int
    ) -> None:
        assert isinstance(wide.model, Decoder)
        self.draft, self.wide, self.embed = draft, wide, wide.model.embed
        self.runner = BatchedRunner(draft, len(padded), capacity)
        self.again = lookahead + 1
        feature = draft.feature(wide.features[:, : padded.shape[1] - 1])
        self._rows(feature, padded[:, 1:], torch.zeros_like(padded[:, 0]))

    def first(self, texts: Sequence[list[int]], length: Tensor) -> Tensor:
        """As in `PlainDrafting`."""
        # Texts shorter than that are padded at their end: rows beyond the text are stale, as after any rejection.
        start = (length - 1 - self.again).clamp(min=0)  # rows 0 .. length-2 are the text's
        places = start[:, None] + torch.arange(self.again, device=length.device)
        ids = [
            (text + [0] * self.again)[s + 1 :][: self.again]
            for text, s in zip(texts, start.tolist(), strict=True)
        ]
        tapped = self.wide.features.gather(1, places[..., None].expand(-1, -1, self.wide.features.shape[-1]))
        own = self._rows(self.draft.feature(tapped), torch.tensor(ids, device=length.device), start)
        at = (length - 2 - start)[:, None, None].expand(-1, 1, own.shape[-1])
        self._own, self._end = own.gather(1, at), length - 1
        return self.draft.logits(self._own[:, -1])

    def then(self, token: Tensor) -> Tensor:
        """As in `PlainDrafting`."""
        self._own = self._rows(self._own, token[:, None], self._end)
        self._end = self._end + 1
        return self.draft.logits(self._own[:, -1])

    def _rows(self, feature: Tensor, following: Tensor, start: Tensor) -> Tensor:
        embedded = F.embedding(following, self.embed).to(feature.dtype)
        return self.runner.stream(self.draft.inputs(feature, embedded), start)
