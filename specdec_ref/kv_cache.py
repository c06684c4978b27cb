"""The key/value cache: allocated once, written in place, rolled back by changing one number.

Rejecting drafted tokens must cost nothing. A cache that grows by concatenation copies itself at every step; this one is
static, and forgetting the last tokens is `length -= n`. What lies beyond `length` is never read and is overwritten next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_ref.errors import CacheError

if TYPE_CHECKING:
    from specdec_ref.kv_pool import KVPool
    from specdec_ref.model import ModelConfig


class KVCache:
    """Keys and values of one sequence, for every layer of one model.

    A forward pass is `begin` (room is checked, the cache is marked as being written), one write per layer through
    `layer`, then `commit`. If the pass raises in between, the cache stays marked: its contents are half a step, and every
    further use is refused until `reset`.

    Args:
        config: the model whose shapes it must fit.
        capacity: most tokens it can hold.
        dtype: element type; float32 unless the model runs in another.
        pool: where the memory comes from (the arena called `arena`, of just this shape); None: memory of its own.
        arena: "target" or "draft".

    Attributes:
        keys: [layers, G, capacity, E].
        values: like `keys`.
        length: tokens that count; set it back with `truncate`.
    """

    def __init__(
        self,
        config: ModelConfig,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        *,
        pool: KVPool | None = None,
        arena: str = "target",
    ) -> None:
        if capacity < 1:
            raise CacheError(f"a cache needs room for at least one token, got capacity {capacity}")
        shape = (config.num_hidden_layers, config.num_key_value_heads, capacity, config.head_dim)
        if pool is None:
            self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        else:
            self.keys, self.values = pool.tensors(arena)
            if self.keys.shape != shape or self.keys.dtype != dtype:
                raise CacheError(
                    f"the arena is {self.keys.dtype} {[*self.keys.shape]}, the model needs {dtype} {[*shape]}",
                    where=f"KV pool, arena {arena!r}",
                    fix="make its ArenaSpec with `ArenaSpec.of`",
                )
        self.capacity = capacity
        self.length = 0
        self._writing = False

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values occupy, used or not."""
        return self.keys.nbytes + self.values.nbytes

    def begin(self, tokens: int) -> int:
        """Announce a pass over `tokens` new tokens and return the position of the first.

        Raises:
            CacheError: there is no room, or an earlier pass did not finish.
        """
        self._refuse_if_poisoned()
        if self.length + tokens > self.capacity:
            raise CacheError(
                f"{tokens} more tokens do not fit: {self.length} of {self.capacity} positions are taken",
                where="KV cache",
                fix="raise the context size or shorten the prompt",
            )
        self._writing = True
        return self.length

    def layer(self, index: int) -> tuple[Tensor, Tensor, int]:
        """Keys and values [G, capacity, E] of one layer (views, written in place) and the length before this pass."""
        return self.keys[index], self.values[index], self.length

    def commit(self, tokens: int) -> None:
        """Count the `tokens` just written by every layer."""
        self.length += tokens
        self._writing = False

    def truncate(self, length: int) -> None:
        """Forget every token from position `length` on. O(1): nothing is moved or cleared.

        Raises:
            CacheError: `length` is negative or beyond what is held (a cache cannot roll forward).
        """
        self._refuse_if_poisoned()
        if not 0 <= length <= self.length:
            raise CacheError(
                f"cannot roll back to {length}: the cache holds {self.length} tokens", where="KV cache"
            )
        self.length = length

    def reset(self) -> None:
        """Return to the state just after construction, byte for byte, whatever happened before."""
        self.keys.zero_()
        self.values.zero_()
        self.length = 0
        self._writing = False

    def _refuse_if_poisoned(self) -> None:
        if self._writing:
            raise CacheError(
                "an earlier step failed halfway, so the cache's contents cannot be trusted",
                where="KV cache",
                fix="call reset()",
            )
