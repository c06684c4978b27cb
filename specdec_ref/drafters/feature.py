"""Drafting from the target's own hidden states (EAGLE-3, Li et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.acceptance import Draft
from specdec_ref.drafters.base import Request
from specdec_ref.feature_draft import FeatureDraft
from specdec_ref.kv_cache import KVCache
from specdec_ref.rng import Purpose
from specdec_ref.runner import Runner
from specdec_ref.sampling import distribution, draw

CHUNK = 256
"""Rows per pass over a prompt."""


class FeatureDrafter:
    """Runs a feature-level draft: one pass over what the target saw since last time, then one pass a drafted token.

    The cache holds a row for every token but the last that the target has seen, made from the target's features. Rows made
    from the draft's own features while drafting are forgotten at the next request: the accepted tokens among them have
    features of the target by then, which are better.

    Args:
        model: the draft.
        target: the runner of the target that `speculative` is given; its features are kept from now on.
    """

    def __init__(self, model: FeatureDraft, target: Runner) -> None:
        c = model.config
        model.check_fits(target.model)
        target.keep_features(c.taps)
        self.model, self.target = model, target
        self.vocab_size = target.vocab_size
        self.cache = KVCache(c, min(target.capacity, c.max_position_embeddings), model.dtype)
        self.passes = 0
        self._rows = 0  # rows of the cache that come from the target's features
        self._own = torch.empty(0, c.hidden_size)  # the last one's output
        self._columns = model.head_ids < self.vocab_size

    def begin(self, prompt: Sequence[int]) -> None:
        """Start over with a prompt, which the target must have taken in (all of it but the last token)."""
        self.cache.reset()
        self._rows = 0
        self._catch_up(prompt)
        self.passes = 0

    @torch.inference_mode()
    def propose(self, request: Request) -> tuple[Draft, str | None]:
        """Draft `request.k` tokens; fewer when the context is full, the confidence falls, or nothing precedes the text."""
        draft = Draft(q=None if request.sampling.greedy else [])
        tokens = request.tokens
        # Row n-2 predicts token n, and each further token needs one more row.
        room = self.cache.capacity - len(tokens) + 2
        if len(tokens) < 2 or room < 1:
            return draft, "no feature" if len(tokens) < 2 else "draft context"
        own = self._catch_up(tokens)
        for slot in range(min(request.k, room)):
            if slot:
                own = self.model(own, self._embedded(draft.tokens[-1:]), self.cache)
                self.passes += 1
            logits = self.model.logits(own)[-1][self._columns]
            if request.confident is not None and not request.confident(
                float(logits.float().softmax(-1).max())
            ):
                return draft, "confidence"
            if draft.q is None:
                column = int(logits.argmax())
            else:
                q = distribution(logits, request.sampling)
                column = draw(q, request.uniforms(request.round_index, slot, Purpose.DRAFT))
                draft.q.append(torch.zeros(self.vocab_size).index_copy_(0, self._head_ids, q))
            draft.tokens.append(int(self._head_ids[column]))
        return draft, "draft context" if room < request.k else None

    @property
    def _head_ids(self) -> Tensor:
        return self.model.head_ids[self._columns]

    @torch.inference_mode()
    def _catch_up(self, tokens: Sequence[int]) -> Tensor:
        """Make the rows that a text of n tokens lacks, up to n-2, and return the last one's own feature [1, D]."""
        rows = min(len(tokens) - 1, self.cache.capacity)
        self.cache.truncate(self._rows)
        for start in range(self._rows, rows, CHUNK):
            stop = min(rows, start + CHUNK)
            feature = self.model.feature(self.target.features(start, stop).to(self.model.dtype))
            self._own = self.model(feature, self._embedded(tokens[start + 1 : stop + 1]), self.cache)[-1:]
            self.passes += 1
        self._rows = rows
        return self._own

    def _embedded(self, tokens: Sequence[int]) -> Tensor:
        return F.embedding(torch.tensor(tokens), self.target.model.embed).to(self.model.dtype)
