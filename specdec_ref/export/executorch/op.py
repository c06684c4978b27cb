"""`specdec::kv_attention`: attention over the KV pool as one operator, known to `torch.export` here and to C++ on the phone.

Exporters split attention into a dozen operators, copy the cache to append to it, and attend to all its capacity. This one
operator rotates, appends and attends in place. Its twin is `assets/runtime/executorch/src/kv_attention.cc`.

Shapes: T new tokens, H query heads, G key/value heads, E head width, L cache length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_ARGUMENTS = (
    "Tensor qkv, Tensor? q_gain, Tensor? k_gain, float eps, Tensor cos, Tensor sin, Tensor start, "
    "Tensor(a!) keys, Tensor(b!) values, int layer, int heads"
)

_library = torch.library.Library("specdec", "DEF")
_library.define(f"kv_attention({_ARGUMENTS}) -> Tensor")
_library.define(f"kv_attention.out({_ARGUMENTS}, *, Tensor(c!) out) -> Tensor(c!)")


def kv_attention(
    qkv: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    start: Tensor,
    keys: Tensor,
    values: Tensor,
    layer: int,
    heads: int,
) -> Tensor:
    """Rotate new queries and keys, append keys and values to the cache, and attend causally.

    Args:
        qkv: [T, (H + 2 G) E] what the joint query/key/value projection gives, biases included.
        q_gain: [E] gain of the RMSNorm over each query head, where the model has one.
        k_gain: [E] of each key head's.
        eps: epsilon of both.
        cos: [at least start + T, E / 2] cosines of the rotary embedding by position.
        sin: like `cos`; both halves of a head turn by the same angle.
        start: [1] int64, tokens that the cache holds already.
        keys: [layers, G, L, E], written at positions start … start + T - 1 of `layer`.
        values: like `keys`.
        layer: which layer's part of the cache.
        heads: H.

    Returns:
        [T, H E].
    """
    tokens, length = qkv.shape[0], int(start)
    groups, width = keys.shape[1], keys.shape[3]
    q, k, v = qkv.view(tokens, -1, width).transpose(0, 1).split([heads, groups, groups])
    if q_gain is not None:
        q = F.rms_norm(q, (width,), q_gain, eps)
    if k_gain is not None:
        k = F.rms_norm(k, (width,), k_gain, eps)
    rows = slice(length, length + tokens)
    q, k = _rotate(q, cos[rows], sin[rows]), _rotate(k, cos[rows], sin[rows])
    keys[layer, :, rows], values[layer, :, rows] = k, v
    held_k, held_v = (cache[layer, :, : length + tokens] for cache in (keys, values))
    visible = torch.ones(tokens, length + tokens, dtype=torch.bool, device=qkv.device).tril(length)
    out = F.scaled_dot_product_attention(
        q[None], held_k[None], held_v[None], attn_mask=visible, enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(tokens, heads * width)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _shape_only(qkv: Tensor, *arguments: Any) -> Tensor:
    *_, keys, _values, _layer, heads = arguments
    return qkv.new_empty(qkv.shape[0], heads * keys.shape[3])


def _into(*arguments: Any, out: Tensor) -> Tensor:
    return out.copy_(kv_attention(*arguments))


def _into_shape_only(*arguments: Any, out: Tensor) -> Tensor:
    return out


_library.impl("kv_attention", kv_attention, "CPU")
_library.impl("kv_attention", _shape_only, "Meta")
_library.impl("kv_attention.out", _into, "CPU")
_library.impl("kv_attention.out", _into_shape_only, "Meta")
