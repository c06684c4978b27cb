"""What a cache must hold: keys and values of a text, computed afresh in one pass over all of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.kv_cache import KVCache
from specdec_ref.model import Decoder, rope_table


@torch.inference_mode()
def keys_and_values(model: Decoder, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """[layers, G, T, E] each, written out without the model's forward pass and without a cache."""
    c = model.config
    count, group = len(tokens), c.num_attention_heads // c.num_key_value_heads
    cos, sin = rope_table(c, count, model.embed)
    future = torch.ones(count, count, dtype=torch.bool).triu(1)

    def rotated(x: Tensor) -> Tensor:
        return x * cos + x.roll(c.head_dim // 2, dims=-1) * sin

    x = model.embed[list(tokens)]
    all_keys, all_values = [], []
    for layer in model.layers:
        qkv = F.linear(layer.attention_norm(x), layer.qkv.weight).view(count, -1, c.head_dim).transpose(0, 1)
        heads = c.num_attention_heads
        q, k = rotated(qkv[:heads]), rotated(qkv[heads : heads + c.num_key_value_heads])
        v = qkv[heads + c.num_key_value_heads :]
        scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) / c.head_dim**0.5
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v.repeat_interleave(group, 0)
        x = x + F.linear(mixed.transpose(0, 1).reshape(count, -1), layer.out.weight)
        gate, up = F.linear(layer.mlp_norm(x), layer.gate_up.weight).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.down.weight)
        all_keys.append(k)
        all_values.append(v)
    return torch.stack(all_keys), torch.stack(all_values)


def assert_holds(cache: KVCache, model: Decoder, tokens: Sequence[int]) -> None:
    """The cache counts just these tokens, and its contents are theirs in every layer."""
    assert cache.length == len(tokens)
    keys, values = keys_and_values(model, tokens)
    torch.testing.assert_close(cache.keys[:, :, : cache.length], keys, atol=1e-10, rtol=0)
    torch.testing.assert_close(cache.values[:, :, : cache.length], values, atol=1e-10, rtol=0)
