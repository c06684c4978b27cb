"""A model with its KV cache: what the decoding loop talks to, and all that it knows of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specdec_ref.errors import CacheError, UsageError
from specdec_ref.kv_cache import KVCache
from specdec_ref.kv_pool import KVPool
from specdec_ref.model import Decoder


class LanguageModel(Protocol):
    """The contract of a target or draft: score tokens that follow the ones held, and forget the last ones.

    Attributes:
        vocab_size: V, the width of the logits.
        capacity: most tokens it can hold.
        length: tokens it holds now.
    """

    @property
    def vocab_size(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def length(self) -> int: ...

    def forward(self, tokens: Sequence[int]) -> Tensor:
        """Append T tokens and return their next-token logits [T, V]."""
        ...

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append tokens whose logits nobody needs."""
        ...

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on; O(1)."""
        ...

    def reset(self) -> None:
        """Forget everything, also a failed step."""
        ...


class DraftModel(LanguageModel, Protocol):
    """A language model that may know only part of the vocabulary.

    Attributes:
        head_ids: the token id of each column of the logits; None: all of them, in order.
    """

    @property
    def head_ids(self) -> Tensor | None: ...


class Runner:
    """Runs a `Decoder` over a static cache.

    Args:
        model: the decoder; its dtype is the cache's.
        context: capacity in tokens (clipped to the positions the model was trained for).
        vocab_size: real vocabulary; logits beyond it (padding rows of the head) are cut off. Default: all rows.
        pool: where the cache's memory comes from (its arena called `arena`); None: memory of its own.
        chunk: tokens per prefill pass. Bounds the memory of a long prompt (its attention scores grow with chunk x length).
    """

    def __init__(
        self,
        model: Decoder,
        context: int = 2048,
        *,
        vocab_size: int | None = None,
        chunk: int = 256,
        pool: KVPool | None = None,
        arena: str = "target",
    ) -> None:
        if context < 1:
            raise UsageError(f"context must be at least 1 token, got {context}")
        self.model = model
        capacity = min(context, model.config.max_position_embeddings)
        self.cache = KVCache(model.config, capacity, model.dtype, pool=pool, arena=arena)
        self.vocab_size = vocab_size or model.config.vocab_size
        self.chunk = chunk
        self._taps: tuple[int, ...] = ()
        self._features = torch.empty(0)

    def keep_features(self, taps: Sequence[int]) -> None:
        """From the next `reset` on, keep the residual stream after so many blocks, for a drafter that reads it.

        Features live beside the cache: a row each token, and rolled back with it, by its length.

        Raises:
            UsageError: another drafter has asked for other blocks.
        """
        if self._taps not in ((), tuple(taps)):
            raise UsageError(f"features after blocks {self._taps} are kept already, not {tuple(taps)}")
        width = len(taps) * self.model.config.hidden_size
        self._taps = tuple(taps)
        self._features = torch.empty(self.capacity, width, dtype=self.model.dtype)

    def features(self, start: int, stop: int) -> Tensor:
        """[stop - start, taps x D] features of the tokens at these positions, the taps side by side.

        Raises:
            CacheError: the model does not hold these tokens (any more), or keeps no features.
        """
        if not self._taps or stop > self.length:
            raise CacheError(
                f"no features of tokens {start} to {stop}: {self.length if self._taps else 0} are held",
                where="runner",
            )
        return self._features[start:stop]

    @property
    def capacity(self) -> int:
        return self.cache.capacity

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def head_ids(self) -> Tensor | None:
        return self.model.head_ids

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int]) -> Tensor:
        """tokens (T of them) -> logits [T, V] in the model's dtype. A reduced head returns its own rows."""
        logits = self.model.logits(self._hidden(tokens))
        return logits if self.model.head_ids is not None else logits[:, : self.vocab_size]

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int]) -> None:
        """Fill the cache with tokens, `chunk` at a time, computing no logits."""
        for start in range(0, len(tokens), self.chunk):
            self._hidden(tokens[start : start + self.chunk])

    def _hidden(self, tokens: Sequence[int]) -> Tensor:
        taps = {index: torch.empty(0) for index in self._taps}
        start = self.length
        hidden = self.model.hidden_states(torch.tensor(tokens), self.cache, taps=taps or None)
        if taps:
            torch.cat([taps[index] for index in self._taps], -1, out=self._features[start : self.length])
        return hidden

    def truncate(self, length: int) -> None:
        """See `KVCache.truncate`."""
        self.cache.truncate(length)

    def reset(self) -> None:
        """See `KVCache.reset`."""
        self.cache.reset()
