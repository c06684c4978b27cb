"""A decoder cut at its attentions, written for a compiler.

XNNPACK takes a run of operators as one call if it knows each of them. So the pieces between two attentions hold nothing
that it does not know for a dynamic number of tokens: no slice (gate and up are two products), no mean over the width (a
product with a constant row of 1/D), no reshape. A layer is then two calls: one delegate, one `specdec::kv_attention`.

    First:  x -> qkv                          attention's input of layer 0
    Middle: x, attended -> x, qkv             the rest of layer i, attention's input of layer i + 1
    Last:   x, attended -> logits             the rest of the last layer, final norm, head: for the wanted rows only
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.export.executorch.linear import Precision, linear
from specdec_ref.export.executorch.op import kv_attention  # registers the operator
from specdec_ref.model import Decoder, Layer, Norm, rope_table

__all__ = ["Graph", "kv_attention"]


class Graph(nn.Module):
    """Token ids and the KV pool in, logits out. Float weights are shared with the decoder it is made from.

    Args:
        model: a decoder in float32.
        context: most positions it can be run at (rows of the rotary table).
        body: precision of the layers' matrices.
        head: precision of the output head.
        embedding_int8: whether the embedding table is kept as 8-bit codes with a scale per row.
        rows: of a whole output head that stand for tokens; the rest is padding and is left out.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        model: Decoder,
        context: int,
        body: Precision,
        head: Precision,
        *,
        embedding_int8: bool,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        c = self.config = model.config
        cos, sin = rope_table(c, context, model.embed)
        half = c.head_dim // 2
        self.register_buffer("cos", cos[:, :half].contiguous())
        self.register_buffer("sin", sin[:, half:].contiguous())
        self.embed = Embedding(model.embed, int8=embedding_int8)
        layers = [layer for layer in model.layers if isinstance(layer, Layer)]
        self.first = First(layers[0], body)
        self.middle = nn.ModuleList(Middle(layer, after, body) for layer, after in itertools.pairwise(layers))
        weight = (model.embed if model.head is None else model.head.weight)[:rows]
        self.last = Last(layers[-1], model.norm, linear(weight, None, head), body)
        self.head_rows = weight.shape[0]
        for index, layer in enumerate(layers):
            for name, norm in (("q_gain", layer.q_norm), ("k_gain", layer.k_norm)):
                self.register_buffer(f"{name}_{index}", None if norm is None else norm.weight.detach())

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
        (qkv,) = as_tuple(self.first(x))
        for index, middle in enumerate(self.middle):
            x, qkv = middle(x, self._attend(index, qkv, start, keys, values))
        attended = self._attend(len(self.middle), qkv, start, keys, values)
        (logits,) = as_tuple(self.last(x[rows], attended[rows]))
        return logits

    def _attend(self, index: int, qkv: Tensor, start: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        c = self.config
        gains = (getattr(self, f"{name}_{index}") for name in ("q_gain", "k_gain"))
        turns = self.cos, self.sin
        return torch.ops.specdec.kv_attention(
            qkv, *gains, c.rms_norm_eps, *turns, start, keys, values, index, c.num_attention_heads
        )


def as_tuple(outputs: Tensor | tuple[Tensor, ...] | list[Tensor]) -> tuple[Tensor, ...]:
    """A lowered piece returns a list even of one tensor."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


class Embedding(nn.Module):
    """Rows of a table, in float32 or as 8-bit codes, symmetric about zero, with one scale per row."""

    table: Tensor
    scale: Tensor | None

    def __init__(self, table: Tensor, *, int8: bool) -> None:
        super().__init__()
        table = table.detach()
        scale = None
        if int8:
            scale = table.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
            table = (table / scale).round().to(torch.int8)
        self.register_buffer("table", table)
        self.register_buffer("scale", scale)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [T] -> [T, D]."""
        x = self.table[ids]
        return x if self.scale is None else x * self.scale[ids]


class First(nn.Module):
    """x [T, D] -> the first layer's queries, keys and values [T, (H + 2 G) E]."""

    def __init__(self, layer: Layer, precision: Precision) -> None:
        super().__init__()
        self.norm = RmsNorm(layer.attention_norm)
        self.qkv = linear(layer.qkv.weight, layer.qkv.bias, precision)

    def forward(self, x: Tensor) -> Tensor:
        return self.qkv(self.norm(x))


class AfterAttention(nn.Module):
    """x [T, D], attended [T, H E] -> x [T, D]: output projection and SwiGLU."""

    def __init__(self, layer: Layer, precision: Precision) -> None:
        super().__init__()
        size, bias = layer.config.intermediate_size, layer.gate_up.bias
        self.out = linear(layer.out.weight, layer.out.bias, precision)
        self.norm = RmsNorm(layer.mlp_norm)
        self.gate = linear(layer.gate_up.weight[:size], None if bias is None else bias[:size], precision)
        self.up = linear(layer.gate_up.weight[size:], None if bias is None else bias[size:], precision)
        self.down = linear(layer.down.weight, layer.down.bias, precision)

    def forward(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended)
        h = self.norm(x)
        gate = self.gate(h)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(h))


class Middle(nn.Module):
    """Everything between the attentions of two layers."""

    def __init__(self, layer: Layer, after: Layer, precision: Precision) -> None:
        super().__init__()
        self.rest = AfterAttention(layer, precision)
        self.next = First(after, precision)

    def forward(self, x: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        x = self.rest(x, attended)
        return x, self.next(x)


class Last(nn.Module):
    """Everything after the last attention."""

    def __init__(self, layer: Layer, norm: Norm, head: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.rest = AfterAttention(layer, precision)
        self.norm = RmsNorm(norm)
        self.head = head

    def forward(self, x: Tensor, attended: Tensor) -> Tensor:
        return self.head(self.norm(self.rest(x, attended)))


class RmsNorm(nn.Module):
    """RMSNorm; the mean of squares is a product with a constant row, epsilon its bias."""

    gain: Tensor
    mean: Tensor
    eps: Tensor

    def __init__(self, norm: Norm) -> None:
        super().__init__()
        width = norm.weight.shape[0]
        self.register_buffer("gain", norm.weight.detach())
        self.register_buffer("mean", torch.full((1, width), 1.0 / width))
        self.register_buffer("eps", torch.tensor([norm.eps]))

    def forward(self, x: Tensor) -> Tensor:
        """x [T, D] -> [T, D]."""
        return x * torch.rsqrt(F.linear(x * x, self.mean, self.eps)) * self.gain
