"""The third knob: how precisely keys and values are kept.

At a long context the cache outweighs a 4-bit model's weights. int8 keeps one float16 scale per token and key/value head for
keys, and one for values; entries are rounded as they are written, before any query sees them, so a token's keys are the
same numbers whether they were written alone or beside others, and plain and speculative decoding still agree.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor

from specdec_ref.errors import UsageError
from specdec_ref.kv_cache import KVCache
from specdec_ref.model import Decoder, ModelConfig
from specdec_ref.runner import Runner

Precision = Literal["fp32", "fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")


class _Rounded:
    """Looks like keys or values [G, L, E] of one layer to the model: rounds what is written, and widens what is read."""

    def __init__(self, codes: Tensor, scale: Tensor | None, dtype: torch.dtype) -> None:
        self.codes, self.scale, self.dtype = codes, scale, dtype

    def __setitem__(self, index: Any, value: Tensor) -> None:
        if self.scale is None:
            self.codes[index] = value.to(self.codes.dtype)
            return
        # The largest magnitude becomes 127; float16 holds the scale, and codes are chosen for the scale as it is held.
        scale = (value.abs().amax(-1, keepdim=True) / 127).clamp(min=2**-24).to(self.scale.dtype)
        self.codes[index] = (value / scale.to(value.dtype)).round().clamp(-127, 127).to(torch.int8)
        self.scale[index] = scale

    def __getitem__(self, index: Any) -> Tensor:
        wide = self.codes[index].to(self.dtype)
        return wide if self.scale is None else wide * self.scale[index].to(self.dtype)


class RoundedKVCache(KVCache):
    """A `KVCache` whose entries are kept in float16 or int8; the model computes in its own dtype.

    Args:
        config: the model whose shapes it must fit.
        capacity: most tokens it can hold.
        precision: fp16 or int8.
        dtype: the model's.

    Attributes:
        keys, values: [layers, G, capacity, E], float16 or int8.
        key_scale, value_scale: [layers, G, capacity, 1] float16; None for fp16.
    """

    def __init__(
        self, config: ModelConfig, capacity: int, precision: Precision, dtype: torch.dtype = torch.float32
    ) -> None:
        held = {"fp16": torch.float16, "int8": torch.int8}
        if precision not in held:
            raise UsageError(
                f"unknown cache precision {precision!r}", fix=f"use one of: {', '.join(PRECISIONS)}"
            )
        super().__init__(config, capacity, held[precision])
        self.precision, self.dtype = precision, dtype
        self.key_scale = self.value_scale = None
        if precision == "int8":
            self.key_scale = torch.zeros(*self.keys.shape[:3], 1, dtype=torch.float16)
            self.value_scale = torch.zeros_like(self.key_scale)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and scales, used or not."""
        scales = [scale.nbytes for scale in (self.key_scale, self.value_scale) if scale is not None]
        return self.keys.nbytes + self.values.nbytes + sum(scales)

    def layer(self, index: int) -> tuple[Tensor, Tensor, int]:
        """As `KVCache.layer`; the two are stand-ins that round on writing."""
        keys = _Rounded(
            self.keys[index], None if self.key_scale is None else self.key_scale[index], self.dtype
        )
        values = _Rounded(
            self.values[index], None if self.value_scale is None else self.value_scale[index], self.dtype
        )
        return cast(Tensor, keys), cast(Tensor, values), self.length

    def reset(self) -> None:
        """As `KVCache.reset`, scales too."""
        super().reset()
        for scale in (self.key_scale, self.value_scale):
            if scale is not None:
                scale.zero_()


def bytes_per_token(config: ModelConfig, precision: Precision) -> int:
    """Bytes of cache that every token of context takes."""
    per_head = {"fp32": 4 * config.head_dim, "fp16": 2 * config.head_dim, "int8": config.head_dim + 2}[
        precision
    ]
    return 2 * config.num_hidden_layers * config.num_key_value_heads * per_head


def runner_with_kv(
    model: Decoder, context: int, precision: Precision, *, vocab_size: int | None = None
) -> Runner:
    """A `Runner` whose cache has that precision.

    Raises:
        UsageError: unknown precision.
    """
    if precision == "fp32":
        return Runner(model, context, vocab_size=vocab_size)
    runner = Runner(model, 1, vocab_size=vocab_size)  # its own cache is dropped at once
    capacity = min(context, model.config.max_position_embeddings)
    runner.cache = RoundedKVCache(model.config, capacity, precision, model.dtype)
    return runner
