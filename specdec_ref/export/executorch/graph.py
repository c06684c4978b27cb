"""A decoder written for a compiler: what `Decoder` computes, in operators that all end in one partition per layer.

XNNPACK takes a run of operators as one call if it knows each of them. So between two attentions there is nothing that it
does not know for a dynamic number of tokens: no slice (gate and up are two products), no mean over the width (a product
with a constant row of 1/D), no reshape. A layer is two calls: one delegate, one `specdec::kv_attention`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.export.executorch import op as _op  # registers the operator
from specdec_ref.model import Decoder, Layer, Norm, rope_table

__all__ = ["Graph"]

assert _op


class Graph(nn.Module):
    """Token ids and the KV pool in, logits out; weights are shared with the decoder it is made from.

    Args:
        model: a decoder in float32.
        context: most positions it can be run at (rows of the rotary table).
    """

    def __init__(self, model: Decoder, context: int) -> None:
        super().__init__()
        c = self.config = model.config
        cos, sin = rope_table(c, context, model.embed)
        half = c.head_dim // 2
        self.register_buffer("cos", cos[:, :half].contiguous())
        self.register_buffer("sin", sin[:, half:].contiguous())
        self.embed = Embedding(model.embed)
        self.layers = nn.ModuleList(
            GraphLayer(layer, index) for index, layer in enumerate(model.layers) if isinstance(layer, Layer)
        )
        self.norm = GraphNorm(model.norm)
        self.head = _linear(model.embed if model.head is None else model.head.weight)

    def forward(self, ids: Tensor, start: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Score tokens.

        Args:
            ids: [T] int64 token ids that follow the `start` tokens in the cache.
            start: [1] int64.
            rows: [R] int64, which of the T tokens' logits are wanted: all when verifying, one after a prompt's chunk.
            keys: [layers, G, L, E] the cache, written in place.
            values: like `keys`.

        Returns:
            logits [R, V], or the rows of a reduced head.
        """
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, start, keys, values)
        return self.head(self.norm(x[rows]))


class Embedding(nn.Module):
    """Rows of a table, kept in float32 or as 8-bit codes with one scale per row."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table.detach())
        self.register_buffer("scale", None)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, D]."""
        x = self.table[ids]
        return x if self.scale is None else x.to(torch.float32) * self.scale[ids]

    def to_int8(self) -> None:
        """Round every row to 255 levels, symmetric about zero."""
        scale = self.table.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
        self.table = (self.table / scale).round().to(torch.int8)
        self.scale = scale


class GraphLayer(nn.Module):
    """One transformer block."""

    def __init__(self, layer: Layer, index: int) -> None:
        super().__init__()
        c = self.config = layer.config
        self.index = index
        self.attention_norm = GraphNorm(layer.attention_norm)
        self.qkv = _linear(layer.qkv.weight, layer.qkv.bias)
        self.q_norm, self.k_norm = layer.q_norm, layer.k_norm
        self.out = _linear(layer.out.weight, layer.out.bias)
        self.mlp_norm = GraphNorm(layer.mlp_norm)
        size = c.intermediate_size
        bias = layer.gate_up.bias
        self.gate = _linear(layer.gate_up.weight[:size], None if bias is None else bias[:size])
        self.up = _linear(layer.gate_up.weight[size:], None if bias is None else bias[size:])
        self.down = _linear(layer.down.weight, layer.down.bias)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, start: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """x [T, D] -> [T, D]; the other arguments as in `kv_attention`."""
        heads = self.config.num_attention_heads
        qkv = self._head_norms(self.qkv(self.attention_norm(x)))
        x = x + self.out(
            torch.ops.specdec.kv_attention(qkv, cos, sin, start, keys, values, self.index, heads)
        )
        h = self.mlp_norm(x)
        gate = self.gate(h)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(h))

    def _head_norms(self, qkv: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return qkv
        c = self.config
        heads, groups = c.num_attention_heads, c.num_key_value_heads
        q, k, v = qkv.unflatten(-1, (-1, c.head_dim)).split([heads, groups, groups], dim=1)
        return torch.cat([self.q_norm(q), self.k_norm(k), v], dim=1).flatten(1)


class GraphNorm(nn.Module):
    """RMSNorm; the mean of squares is a product with a constant row, epsilon its bias."""

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        width = norm.weight.shape[0]
        self.register_buffer("gain", norm.weight.detach())
        self.register_buffer("mean", torch.full((1, width), 1.0 / width))
        self.register_buffer("eps", torch.tensor([norm.eps]))

    def forward(self, x: Tensor) -> Tensor:
        """x [T, D] -> [T, D]."""
        return x * torch.rsqrt(F.linear(x * x, self.mean, self.eps)) * self.gain


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    # On the meta device first: nothing is allocated or initialised that is thrown away at once.
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear
