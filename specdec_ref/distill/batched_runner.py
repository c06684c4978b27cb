"""A model over the static caches of many sequences, for decoding them side by side."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.distill.blocks import layers_of
from specdec_ref.model import Decoder, Layer, Stack, rope_table, tap


class BatchedRunner:
    """A model's blocks over static caches of B sequences, each with a length of its own.

    Args:
        model: on its device.
        batch: B.
        capacity: most tokens of a sequence.
        taps: keep the streams after so many blocks, for a feature-level draft.

    Attributes:
        features: [B, capacity, taps x D] those streams, side by side; like the caches, what lies at or beyond a sequence's
            length is stale.
    """

    def __init__(self, model: Stack, batch: int, capacity: int, taps: Sequence[int] = ()) -> None:
        c, like = model.config, next(model.parameters())
        self.model, self.capacity = model, capacity
        shape = (c.num_hidden_layers, batch, c.num_key_value_heads, capacity, c.head_dim)
        self.keys = torch.zeros(shape, device=like.device, dtype=like.dtype)
        self.values = torch.zeros_like(self.keys)
        self.cos, self.sin = rope_table(c, capacity, like)
        self.taps = tuple(taps)
        self.features = like.new_zeros(batch, capacity, len(taps) * c.hidden_size)

    @torch.no_grad()
    def hidden(self, ids: Tensor, start: Tensor) -> Tensor:
        """Put ids [B, T] at positions `start` [B] onwards and return hidden states [B, T, D]. Decoders only."""
        assert isinstance(self.model, Decoder)
        return self.model.norm(self.stream(F.embedding(ids, self.model.embed), start))

    @torch.no_grad()
    def stream(self, x: Tensor, start: Tensor) -> Tensor:
        """All blocks over x [B, T, D], whose rows are at positions `start` [B] onwards.

        What a cache holds before `start` counts, what it holds after the new tokens is ignored: rolling a sequence back is
        passing a smaller start.
        """
        positions = start[:, None] + torch.arange(x.shape[1], device=x.device)  # [B, T]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]  # [B, 1, T, E]
        seen = torch.arange(self.capacity, device=x.device) <= positions[:, None, :, None]  # [B, 1, T, L]
        taps = {index: x for index in self.taps}
        for index, layer in enumerate(layers_of(self.model)):
            tap(taps, index, x)
            keys, values = self.keys[index], self.values[index]
            attended = self._attend(layer, layer.attention_norm(x), cos, sin, positions, seen, keys, values)
            x = x + layer.out(attended)
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        tap(taps, len(self.keys), x)
        if taps:
            kept = torch.cat([taps[index] for index in self.taps], -1)
            self.features.scatter_(1, positions[..., None].expand_as(kept), kept)
        return x

    def keep(self, rows: Tensor) -> None:
        """Go on with these sequences only."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.features = self.features[rows]

    def _attend(
        self,
        layer: Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        seen: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        c = self.model.config
        heads, groups, width = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        qkv = layer.qkv(x).unflatten(-1, (heads + 2 * groups, width)).transpose(1, 2)
        q, k, v = qkv.split([heads, groups, groups], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = layer.q_norm(q), layer.k_norm(k)
        q, k = q * cos + q.roll(width // 2, -1) * sin, k * cos + k.roll(width // 2, -1) * sin
        place = positions[:, None, :, None].expand(-1, groups, -1, width)
        keys.scatter_(2, place, k)
        values.scatter_(2, place, v)
        q = q.unflatten(1, (groups, heads // groups)).flatten(2, 3)  # [B, G, (H/G) T, E]
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen.repeat(1, 1, heads // groups, 1))
        return out.unflatten(2, (heads // groups, -1)).flatten(1, 2).transpose(1, 2).flatten(-2)
