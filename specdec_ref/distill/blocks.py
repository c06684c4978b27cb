"""Whole sequences through a `Decoder`, fast and differentiable: what teacher and students run in training.

The same arithmetic as `Decoder.forward` (tested), arranged for large batches: everything but attention works on a flat
[N, D] list of tokens, so one fused graph serves every sequence length, and attention uses the causal kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.errors import UsageError
from specdec_ref.model import Decoder, Layer, ModelConfig, Stack, rope_table, tap

_compiled: dict[str, Callable[..., Any]] = {}


def _before(
    x: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    rotated: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """x [N, D] -> rotated queries and keys [N, rotated, E] and values [N, G, E]."""
    dtype, width = x.dtype, cos.shape[-1]
    h = F.rms_norm(x, (x.shape[-1],), norm.to(dtype), eps)
    qkv = F.linear(h, weight.to(dtype), None if bias is None else bias.to(dtype))
    qkv = qkv.view(x.shape[0], -1, width)
    turned, values = qkv[:, :rotated], qkv[:, rotated:]
    a, b = turned.float().chunk(2, dim=-1)
    c, s = cos[:, None, : width // 2], sin[:, None, width // 2 :]
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1).to(dtype), values.contiguous()


def _after(
    x: Tensor, attended: Tensor, norm: Tensor, out: Tensor, gate_up: Tensor, down: Tensor, eps: float
) -> Tensor:
    """The residual stream [N, D] after attention [N, H E] and the feed-forward half of the block."""
    dtype = x.dtype
    x = x + F.linear(attended, out.to(dtype))
    h = F.rms_norm(x, (x.shape[-1],), norm.to(dtype), eps)
    gate, up = F.linear(h, gate_up.to(dtype)).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, down.to(dtype))


def _piece(name: str, function: Callable[..., Any], fuse: bool) -> Callable[..., Any]:
    if not fuse:
        return function
    if name not in _compiled:
        # Teacher and drafts have different widths, with and without gradients: one graph each.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        _compiled[name] = torch.compile(function, dynamic=False)
    return _compiled[name]


def layers_of(model: Stack) -> list[Layer]:
    """The model's blocks, with their type."""
    return [cast(Layer, layer) for layer in model.layers]


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(number of the block, queries [B, H, T, E], keys [B, G, T, E], values) -> [B, H, T, E]."""


def causal(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each token attends to itself and to all before it."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


class Trunk:
    """Runs one model's blocks over batches of sequences.

    Args:
        model: its parameters are used as they are, in any dtype; biases and q/k norms are not supported here.
        positions: longest sequence.
        dtype: of the activations; weights are cast to it.
        fuse: compile the element-wise parts.
    """

    def __init__(self, model: Stack, positions: int, dtype: torch.dtype, *, fuse: bool = False) -> None:
        c = model.config
        if c.qk_norm or c.o_bias or c.mlp_bias:
            raise UsageError(
                "distillation knows no q/k norms, and no biases but those of q, k and v",
                fix="take a target of the Llama or Qwen2 family",
            )
        self.model, self.dtype, self.fuse = model, dtype, fuse
        self.cos, self.sin = rope_table(c, positions, torch.empty(0, device=next(model.parameters()).device))

    def __call__(self, ids: Tensor, taps: dict[int, Tensor] | None = None) -> Tensor:
        """ids [B, T] -> normalised hidden states [B T, D] in `dtype`; for `taps` see `Stack.stream`. Decoders only."""
        assert isinstance(self.model, Decoder)
        x = F.embedding(ids.reshape(-1), self.model.embed).to(self.dtype)
        return self.normalised(self.stream(x, len(ids), taps=taps))

    def normalised(self, x: Tensor) -> Tensor:
        """The stream [N, D] -> what goes under the output head."""
        c = self.model.config
        return F.rms_norm(x, (c.hidden_size,), self.model.norm.weight.to(self.dtype), c.rms_norm_eps)

    def stream(
        self,
        x: Tensor,
        batch: int,
        *,
        first: int = 0,
        attend: Attend = causal,
        taps: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """All blocks over x [B T, D], whose sequences begin at position `first`; `taps` as in `Stack.stream`."""
        stop = first + len(x) // batch
        cos, sin = self.cos[first:stop].repeat(batch, 1), self.sin[first:stop].repeat(batch, 1)
        for index, layer in enumerate(layers_of(self.model)):
            tap(taps, index, x)
            x = self._layer(index, layer, x, cos, sin, batch, attend)
        tap(taps, len(self.model.layers), x)
        return x

    def _layer(
        self, index: int, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor, batch: int, attend: Attend
    ) -> Tensor:
        c: ModelConfig = self.model.config
        heads, groups = c.num_attention_heads, c.num_key_value_heads
        before = _piece("before", _before, self.fuse)
        turned, values = before(
            x,
            layer.attention_norm.weight,
            layer.qkv.weight,
            layer.qkv.bias,
            cos,
            sin,
            heads + groups,
            c.rms_norm_eps,
        )
        q, k = turned.unflatten(0, (batch, -1)).transpose(1, 2).split([heads, groups], dim=1)
        v = values.unflatten(0, (batch, -1)).transpose(1, 2)
        attended = attend(index, q, k, v)
        after = _piece("after", _after, self.fuse)
        return after(
            x, attended.transpose(1, 2).reshape(x.shape[0], -1), layer.mlp_norm.weight, layer.out.weight,
            layer.gate_up.weight, layer.down.weight, c.rms_norm_eps,
        )  # fmt: skip
