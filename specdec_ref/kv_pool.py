"""One region of memory for the KV caches of target and draft: page-aligned, locked where the system allows it.

The same layout as the mobile runtime's (`assets/runtime/core`, `kv_layout.h`), described by the same JSON, so that what
is seen here with `data_ptr()` is what a phone does. Two caches in one pool cost two views and no copies.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_ref.errors import CacheError
from specdec_ref.model import ModelConfig

PAGE_BYTES = 16384
"""Apple's pages; a multiple of everyone else's."""

TENSOR_ALIGNMENT = 64
"""One cache line, and what Metal and XNNPACK ask for."""

_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class PoolNotLocked(UserWarning):
    """The system would not lock the pool into memory; it works all the same."""


@dataclass(frozen=True)
class ArenaSpec:
    """One model's cache.

    Attributes:
        name: "target", "draft".
        layers: number of layers.
        kv_heads: G.
        capacity: L, most tokens.
        head_dim: E.
        dtype: "float64", "float32", "float16" or "bfloat16".
        kind: how the model forgets: "full", "sliding_window" or "recurrent". Only a full cache can be rolled back anywhere.
        window: tokens of a sliding window.
    """

    name: str
    layers: int
    kv_heads: int
    capacity: int
    head_dim: int
    dtype: str = "float32"
    kind: str = "full"
    window: int = 0

    @classmethod
    def of(
        cls, name: str, config: ModelConfig, capacity: int, dtype: torch.dtype = torch.float32
    ) -> ArenaSpec:
        """The arena that a model needs; `capacity` is clipped to the positions it was trained for."""
        named = next((key for key, value in _DTYPES.items() if value == dtype), None)
        if named is None:
            raise CacheError(f"a cache cannot hold {dtype}", where="KV pool", fix=f"use one of {[*_DTYPES]}")
        tokens = min(capacity, config.max_position_embeddings)
        return cls(name, config.num_hidden_layers, config.num_key_value_heads, tokens, config.head_dim, named)

    def _check(self) -> None:
        where = f"KV pool, arena {self.name!r}"
        if min(self.layers, self.kv_heads, self.capacity, self.head_dim) < 1:
            raise CacheError("layers, heads, capacity and head width must be at least 1", where=where)
        if self.dtype not in _DTYPES:
            raise CacheError(f"unknown cache type {self.dtype!r}", where=where)
        if self.kind not in ("full", "sliding_window", "recurrent"):
            raise CacheError(f"unknown kind of cache {self.kind!r}", where=where)
        if self.kind == "recurrent":
            raise CacheError("a recurrent state cannot be rolled back", where=where)
        if self.kind == "sliding_window" and self.window < self.capacity:
            raise CacheError(
                f"a sliding window of {self.window} tokens cannot be rolled back past its edge",
                where=where,
                fix="give it a capacity within the window",
            )


def layout(specs: Sequence[ArenaSpec]) -> dict[str, Any]:
    """Where everything lies, as JSON shared with C++. All numbers are bytes, offsets count from the pool's start.

    Keys of an arena are [layers, G, L, E] from `keys_offset`, contiguous, values the same from `values_offset`. An arena
    begins on a page and takes whole pages.

    Raises:
        CacheError: a shape that is not positive, a name used twice, or a cache that cannot be rolled back.
    """
    if not specs:
        raise CacheError("it needs at least one arena", where="KV pool")
    arenas: list[dict[str, Any]] = []
    offset = 0
    for spec in specs:
        spec._check()
        if any(arena["name"] == spec.name for arena in arenas):
            raise CacheError("the name is used twice", where=f"KV pool, arena {spec.name!r}")
        token = spec.head_dim * _DTYPES[spec.dtype].itemsize
        head = token * spec.capacity
        layer = head * spec.kv_heads
        tensor = layer * spec.layers
        values = _round_up(offset + tensor, TENSOR_ALIGNMENT)
        size = _round_up(values + tensor - offset, PAGE_BYTES)
        arenas.append(
            {
                "name": spec.name,
                "dtype": spec.dtype,
                "layers": spec.layers,
                "kv_heads": spec.kv_heads,
                "capacity": spec.capacity,
                "head_dim": spec.head_dim,
                "offset": offset,
                "bytes": size,
                "payload_bytes": 2 * tensor,
                "keys_offset": offset,
                "values_offset": values,
                "layer_stride": layer,
                "head_stride": head,
                "token_stride": token,
            }
        )
        offset += size
    return {"version": 1, "page_bytes": PAGE_BYTES, "bytes": offset, "arenas": arenas}


class KVPool:
    """The region and its arenas.

    Args:
        specs: one per model.
        lock: ask the system never to swap this memory. If it refuses (its limit of locked memory is often a few MB), there
            is one warning, `locked` is False, and everything else works.

    Attributes:
        layout: see `layout`.
        locked: whether the memory is locked.
        address: of the first byte; a multiple of `PAGE_BYTES`.
    """

    def __init__(self, specs: Sequence[ArenaSpec], *, lock: bool = True) -> None:
        self.layout = layout(specs)
        size: int = self.layout["bytes"]
        try:
            # mmap aligns to the system's pages, which may be smaller than ours: take one of ours more and skip to it.
            self._memory = mmap.mmap(-1, size + PAGE_BYTES)
        except (OSError, ValueError, OverflowError, MemoryError) as error:
            raise CacheError(
                f"{size:,} bytes cannot be had: {error}", where="KV pool", fix="lower the context size"
            ) from None
        start = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        self._skip = -start % PAGE_BYTES
        self.address = start + self._skip
        self.locked = lock and self._lock(size)

    def tensors(self, name: str) -> tuple[Tensor, Tensor]:
        """Keys and values [layers, G, L, E] of an arena: views, no copies.

        Raises:
            CacheError: there is no arena of that name.
        """
        arena = self.arena(name)
        shape = (arena["layers"], arena["kv_heads"], arena["capacity"], arena["head_dim"])
        dtype = _DTYPES[arena["dtype"]]
        keys, values = (
            torch.frombuffer(
                self._memory,
                dtype=dtype,
                count=arena["payload_bytes"] // 2 // dtype.itemsize,
                offset=self._skip + arena[which],
            ).view(shape)
            for which in ("keys_offset", "values_offset")
        )
        return keys, values

    def arena(self, name: str) -> dict[str, Any]:
        """The layout of one arena.

        Raises:
            CacheError: there is none of that name.
        """
        for arena in self.layout["arenas"]:
            if arena["name"] == name:
                return dict(arena)
        names = ", ".join(arena["name"] for arena in self.layout["arenas"])
        raise CacheError(f"there is no arena {name!r}", where="KV pool", fix=f"it has: {names}")

    def report(self, used: dict[str, int] | None = None) -> dict[str, Any]:
        """Byte accounting, the same JSON as the mobile runtime's.

        Args:
            used: tokens held, by arena; those not named hold none.
        """
        arenas = []
        for arena in self.layout["arenas"]:
            token_bytes = arena["payload_bytes"] // arena["capacity"]
            arenas.append(
                {
                    "name": arena["name"],
                    "bytes": arena["bytes"],
                    "payload_bytes": arena["payload_bytes"],
                    "padding_bytes": arena["bytes"] - arena["payload_bytes"],
                    "used_bytes": token_bytes * (used or {}).get(arena["name"], 0),
                }
            )
        size = self.layout["bytes"]
        return {"bytes": size, "pages": size // PAGE_BYTES, "locked": self.locked, "arenas": arenas}

    def _lock(self, size: int) -> bool:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.mlock(ctypes.c_void_p(self.address), ctypes.c_size_t(size)) == 0:
                return True
            reason = os.strerror(ctypes.get_errno())
        except (OSError, AttributeError, TypeError) as error:  # a system without mlock
            reason = str(error)
        warnings.warn(
            f"the KV pool of {size:,} bytes is not locked into memory: {reason} "
            "(raise the limit of locked memory, `ulimit -l`)",
            PoolNotLocked,
            stacklevel=3,
        )
        return False


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
