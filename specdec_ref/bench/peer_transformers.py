"""The peer that a PyTorch user has at hand: transformers' own generation, plain and assisted, with the same two models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from specdec_ref.export.hf import to_transformers
from specdec_ref.model import Decoder


class TransformersPeer:
    """transformers with the same weights and dtype.

    Assisted generation runs with the settings that suit this pair: a constant number of assistant tokens and no early
    stop by confidence (whose default threshold is made for larger assistants).

    Args:
        target: its weights are shared, not copied.
        draft: likewise. Its head is not reduced there: transformers has no such thing.
        k: assistant tokens per round.
    """

    def __init__(self, target: Decoder, draft: Decoder, k: int) -> None:
        self.target, self.draft = to_transformers(target), to_transformers(draft)
        settings = self.draft.generation_config
        settings.num_assistant_tokens = k
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0

    @torch.inference_mode()
    def generate(
        self, prompt: Sequence[int], *, assisted: bool, max_new_tokens: int, eos_ids: Sequence[int]
    ) -> tuple[list[int], float]:
        """Greedy tokens and the seconds after the first of them (as near to decode time as `generate` lets one measure)."""
        ids = torch.tensor([list(prompt)])
        clock = _FirstToken()
        options: dict[str, Any] = {"assistant_model": self.draft} if assisted else {}
        out = self.target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(eos_ids) or None,
            pad_token_id=0,
            streamer=clock,
            **options,
        )
        end = time.perf_counter()
        tokens = out[0, len(prompt) :].tolist()
        # The streamer sees the first tokens when prefill (and, assisted, the first round) is over.
        counted = max(len(tokens) - clock.first, 1)
        return tokens, (end - clock.time) * len(tokens) / counted


class _FirstToken:
    """A streamer that notes when the first new tokens came, and how many."""

    def __init__(self) -> None:
        self.calls, self.time, self.first = 0, 0.0, 0

    def put(self, value: torch.Tensor) -> None:
        self.calls += 1
        if self.calls == 2:  # the first call passes the prompt
            self.time, self.first = time.perf_counter(), value.numel()

    def end(self) -> None:
        pass
