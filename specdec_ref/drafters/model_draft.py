"""Drafting with a small language model that shares the target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec_ref.acceptance import Draft
from specdec_ref.drafters.base import Request
from specdec_ref.rng import Purpose
from specdec_ref.runner import DraftModel
from specdec_ref.sampling import distribution, draw


class ModelDrafter:
    """Runs the draft model K times, one token each, rolling its cache back to the text first.

    The draft's vocabulary may be a subset of the target's (a reduced head) or padded differently: q is zero outside the
    common part.

    Args:
        runner: the draft model and its cache.
        vocab_size: the target's vocabulary V.
    """

    def __init__(self, runner: DraftModel, vocab_size: int) -> None:
        self.runner = runner
        self.vocab_size = vocab_size
        self.passes = 0
        self._held: list[int] = []  # the tokens whose keys and values are in the cache
        self._agreed = 0
        ids = runner.head_ids
        rows = torch.arange(runner.vocab_size) if ids is None else ids
        self._head_ids: Tensor = rows[rows < vocab_size]
        self._reduced = len(self._head_ids) < vocab_size

    def begin(self, prompt: Sequence[int]) -> None:
        """Start over with a prompt; all but its last token are taken in now (the last is fed by the first draft)."""
        self.runner.reset()
        self._held = list(prompt[:-1][: self.runner.capacity])
        self._agreed = len(self._held)  # how much of it is known to be the text's
        self.runner.prefill(self._held)
        self.passes = 0

    def propose(self, request: Request) -> tuple[Draft, str | None]:
        """Draft `request.k` tokens; fewer when the draft's context is full or its confidence falls."""
        tokens = list(request.tokens)
        self._roll_back(tokens)
        room = self.runner.capacity - len(tokens) + 1
        draft = Draft(q=None if request.sampling.greedy else [])
        feed = tokens[len(self._held) :]
        for slot in range(min(request.k, room)):
            logits = self._next_logits(feed)
            if request.confident is not None and not request.confident(
                float(logits.float().softmax(-1).max())
            ):
                return draft, "confidence"
            if draft.q is None:
                row = int(logits.argmax())
            else:
                q = distribution(logits, request.sampling)
                row = draw(q, request.uniforms(request.round_index, slot, Purpose.DRAFT))
                draft.q.append(self._widen(q))
            feed = [int(self._head_ids[row])]
            draft.tokens.append(feed[0])
        return draft, "draft context" if room < request.k else None

    def _roll_back(self, tokens: list[int]) -> None:
        # Compare forwards from the last text that was agreed on. Comparing backwards would stop at a drafted token that
        # happens to equal the text's while one before it was rejected (others may have drafted rounds in between).
        common, end = self._agreed, min(len(self._held), len(tokens) - 1)  # one token must be left to feed
        while common < end and self._held[common] == tokens[common]:
            common += 1
        self.runner.truncate(common)
        del self._held[common:]
        self._agreed = common

    def _next_logits(self, feed: list[int]) -> Tensor:
        self.runner.prefill(feed[:-16])  # a long gap (rounds drafted by others) needs no logits
        logits = self.runner.forward(feed[-16:])[-1]
        self._held += feed
        self.passes += 1
        return logits[: len(self._head_ids)]

    def _widen(self, q: Tensor) -> Tensor:
        if not self._reduced:
            return q
        return torch.zeros(self.vocab_size).index_copy_(0, self._head_ids, q)
