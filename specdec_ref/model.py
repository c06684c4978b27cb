"""A Llama-family decoder (Llama, Qwen2, Qwen3) in plain PyTorch, small enough to read in one sitting.

Shapes use T tokens, D hidden width, H query heads, G key/value heads, E head width, L cache length, V vocabulary.
References: RoPE (Su et al., 2021), grouped-query attention (Ainslie et al., 2023), RMSNorm (Zhang & Sennrich, 2019),
SwiGLU (Shazeer, 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.errors import CheckpointError
from specdec_ref.kv_cache import KVCache
from specdec_ref.linear import Linear, small_linear


@dataclass(frozen=True)
class RopeScaling:
    """Context extension of rotary embeddings: `linear` (all frequencies) or `llama3` (low frequencies only)."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """Everything that fixes a decoder's shapes and arithmetic. Field names follow Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    head_rows: int | None = None
    """Rows of a reduced output head (a draft that only ever proposes frequent tokens); None: one row per token."""

    @property
    def body_parameters(self) -> int:
        """Parameters read for every token, embedding and head left out."""
        d, h, g, e, f = (
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
            self.intermediate_size,
        )
        attention = (
            d * (h + 2 * g) * e
            + h * e * d
            + (h + 2 * g) * e * self.qkv_bias
            + d * self.o_bias
            + 2 * e * self.qk_norm
        )
        return self.num_hidden_layers * (attention + 3 * d * f + (2 * f + d) * self.mlp_bias + 2 * d) + d

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head: its rows times the hidden width."""
        return (self.head_rows or self.vocab_size) * self.hidden_size


class Stack(nn.Module):
    """Transformer blocks over a residual stream: a decoder without its two ends."""

    config: ModelConfig
    layers: nn.ModuleList
    norm: Norm
    _rope: tuple[Tensor, Tensor] | None = None

    def stream(
        self, x: Tensor, cache: KVCache | None = None, *, taps: dict[int, Tensor] | None = None
    ) -> Tensor:
        """Run all blocks.

        Args:
            x: [..., T, D] what goes into the first block.
            cache: as in `Decoder.forward`.
            taps: its keys are numbers of blocks; the stream [..., T, D] after so many of them (0: x) becomes their value.

        Returns:
            [..., T, D], not normalised.
        """
        tokens = x.shape[-2]
        start = 0 if cache is None else cache.begin(tokens)
        cos, sin = self._rope_rows(start, start + tokens, x)
        mask = _causal_mask(start, tokens, x)
        for index, layer in enumerate(self.layers):
            tap(taps, index, x)
            x = layer(x, cos, sin, mask, None if cache is None else cache.layer(index))
        tap(taps, len(self.layers), x)
        if cache is not None:
            cache.commit(tokens)
        return x

    def _rope_rows(self, start: int, stop: int, like: Tensor) -> tuple[Tensor, Tensor]:
        if self._rope is None or self._rope[0].shape[0] < stop or self._rope[0].dtype != like.dtype:
            rows = max(stop, min(self.config.max_position_embeddings, 2048))
            self._rope = rope_table(self.config, rows, like)
        cos, sin = self._rope
        return cos[start:stop], sin[start:stop]


def tap(taps: dict[int, Tensor] | None, index: int, x: Tensor) -> None:
    """Keep the stream x after `index` blocks if `taps` asks for it."""
    if taps is not None and index in taps:
        taps[index] = x


class Decoder(Stack):
    """Token ids in, next-token logits out.

    Weights are frozen (training code turns gradients on for itself). Queries, keys and values share one matrix, and so do
    gate and up projection: fewer, larger products are closer to the memory bandwidth.
    """

    head_ids: Tensor | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size), requires_grad=False)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.head: Linear | None = None
        if config.head_rows is not None or not config.tie_word_embeddings:
            self.head = Linear(config.hidden_size, config.head_rows or config.vocab_size)
        # Row r of a reduced head is the logit of token head_ids[r]; ascending, so "lowest row" is "lowest token".
        head_ids = torch.arange(config.head_rows) if config.head_rows is not None else None
        self.register_buffer("head_ids", head_ids, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type that weights and activations have."""
        return self.embed.dtype

    def forward(self, ids: Tensor, cache: KVCache | None = None, *, last: int | None = None) -> Tensor:
        """Score `ids` and return logits for the token after each of them.

        Args:
            ids: [T] token ids that follow what `cache` holds; or [B, T] whole sequences when there is no cache.
            cache: where earlier keys and values are, and where these tokens' go. Its length grows by T.
            last: return only the last so many rows: a prompt needs no logits but its last.

        Returns:
            logits [T or last, V] (or with a leading B), in the model's dtype. A reduced head returns its own rows only.
        """
        hidden = self.hidden_states(ids, cache)
        return self.logits(hidden if last is None else hidden[..., hidden.shape[-2] - last :, :])

    def hidden_states(
        self, ids: Tensor, cache: KVCache | None = None, *, taps: dict[int, Tensor] | None = None
    ) -> Tensor:
        """The normalised hidden states [..., T, D] under the output head; arguments as in `forward` and `stream`."""
        return self.norm(self.stream(F.embedding(ids, self.embed), cache, taps=taps))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., T, D] -> logits [..., T, V] (or the rows of a reduced head)."""
        return small_linear(hidden, self.embed if self.head is None else self.head.weight)

    def load_weights(self, tensors: Mapping[str, Tensor], *, where: str = "checkpoint") -> Decoder:
        """Copy tensors with Hugging Face's Llama names into this model, each checked for presence and shape.

        Raises:
            CheckpointError: a tensor is missing, has another shape, or holds a value that is not finite.
        """
        c = self.config

        def take(name: str, *shape: int) -> Tensor:
            if name not in tensors:
                raise CheckpointError(
                    f"tensor {name!r} is missing",
                    where=where,
                    fix="the file is incomplete or another model's",
                )
            tensor = tensors[name]
            if tuple(tensor.shape) != shape:
                raise CheckpointError(
                    f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {shape}",
                    where=where,
                    fix="config.json and the weights are not of the same model",
                )
            if not torch.isfinite(tensor).all():
                raise CheckpointError(
                    f"tensor {name!r} holds NaN or infinity", where=where, fix="take a sound copy of the file"
                )
            return tensor

        with torch.no_grad():
            self.embed.copy_(take("model.embed_tokens.weight", c.vocab_size, c.hidden_size))
            self.norm.weight.copy_(take("model.norm.weight", c.hidden_size))
            for index, layer in enumerate(self.layers):
                assert isinstance(layer, Layer)
                layer.load(lambda name, *shape, i=index: take(f"model.layers.{i}.{name}", *shape))
            if self.head_ids is not None:
                self.head_ids.copy_(take("specdec.head_ids", *self.head_ids.shape))
            if self.head is not None:
                rows = self.head.weight.shape[0]
                tied = c.tie_word_embeddings and self.head_ids is not None
                self.head.weight.copy_(
                    self.embed[self.head_ids] if tied else take("lm_head.weight", rows, c.hidden_size)
                )
        return self


class Layer(nn.Module):
    """One transformer block: attention and SwiGLU, each behind an RMSNorm and added to the stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c = self.config = config
        width = c.num_attention_heads * c.head_dim
        kv_width = c.num_key_value_heads * c.head_dim
        self.attention_norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.qkv = Linear(c.hidden_size, width + 2 * kv_width, bias=c.qkv_bias)
        self.out = Linear(width, c.hidden_size, bias=c.o_bias)
        self.q_norm = Norm(c.head_dim, c.rms_norm_eps) if c.qk_norm else None
        self.k_norm = Norm(c.head_dim, c.rms_norm_eps) if c.qk_norm else None
        self.mlp_norm = Norm(c.hidden_size, c.rms_norm_eps)
        self.gate_up = Linear(c.hidden_size, 2 * c.intermediate_size, bias=c.mlp_bias)
        self.down = Linear(c.intermediate_size, c.hidden_size, bias=c.mlp_bias)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        cached: tuple[Tensor, Tensor, int] | None,
    ) -> Tensor:
        """x [..., T, D] -> [..., T, D]; `cached` is this layer's (keys, values, length) with keys [G, L, E]."""
        x = x + self.out(self._attend(self.attention_norm(x), cos, sin, mask, cached))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def _attend(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        cached: tuple[Tensor, Tensor, int] | None,
    ) -> Tensor:
        c = self.config
        heads, groups, width, tokens = c.num_attention_heads, c.num_key_value_heads, c.head_dim, x.shape[-2]
        qkv = self.qkv(x).unflatten(-1, (heads + 2 * groups, width)).transpose(-3, -2)  # [..., H + 2G, T, E]
        q, k, v = qkv.split([heads, groups, groups], dim=-3)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        if cached is not None:
            keys, values, length = cached
            keys[:, length : length + tokens], values[:, length : length + tokens] = k, v
            k, v = keys[:, : length + tokens], values[:, : length + tokens]
        # The H/G queries that share a key head are stacked along T, so no key or value is ever repeated in memory.
        q = q.unflatten(-3, (groups, heads // groups)).flatten(-3, -2)  # [..., G, (H/G) T, E]
        if mask is not None:
            mask = mask.repeat(heads // groups, 1)
        if x.dim() == 2:  # the fused CPU kernel takes only batches
            out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        else:
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.unflatten(-2, (heads // groups, tokens)).flatten(-4, -3).transpose(-3, -2).flatten(-2)

    def load(self, take: Callable[..., Tensor]) -> None:
        """Fill this block from `take(name, *shape)`, which returns the tensor of that Hugging Face name."""
        c = self.config
        d, f, e = c.hidden_size, c.intermediate_size, c.head_dim
        sizes = {
            "q": c.num_attention_heads * e,
            "k": c.num_key_value_heads * e,
            "v": c.num_key_value_heads * e,
        }
        self.attention_norm.weight.copy_(take("input_layernorm.weight", d))
        self.mlp_norm.weight.copy_(take("post_attention_layernorm.weight", d))
        self.qkv.weight.copy_(
            torch.cat([take(f"self_attn.{n}_proj.weight", size, d) for n, size in sizes.items()])
        )
        self.out.weight.copy_(take("self_attn.o_proj.weight", d, sizes["q"]))
        self.gate_up.weight.copy_(torch.cat([take(f"mlp.{n}_proj.weight", f, d) for n in ("gate", "up")]))
        self.down.weight.copy_(take("mlp.down_proj.weight", d, f))
        if self.qkv.bias is not None:
            self.qkv.bias.copy_(
                torch.cat([take(f"self_attn.{n}_proj.bias", size) for n, size in sizes.items()])
            )
        if self.out.bias is not None:
            self.out.bias.copy_(take("self_attn.o_proj.bias", d))
        if self.gate_up.bias is not None and self.down.bias is not None:
            self.gate_up.bias.copy_(torch.cat([take(f"mlp.{n}_proj.bias", f) for n in ("gate", "up")]))
            self.down.bias.copy_(take("mlp.down_proj.bias", d))
        if self.q_norm is not None and self.k_norm is not None:
            self.q_norm.weight.copy_(take("self_attn.q_norm.weight", e))
            self.k_norm.weight.copy_(take("self_attn.k_norm.weight", e))


class Norm(nn.Module):
    """RMSNorm over the last dimension, with a learned gain."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> same shape."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rope_table(config: ModelConfig, rows: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with the first half negated, [rows, E]: the halves of a head are the rotated pair."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
    frequency = config.rope_theta ** (-half / config.head_dim)
    scaling = config.rope_scaling
    if scaling is not None and scaling.kind == "linear":
        frequency = frequency / scaling.factor
    elif scaling is not None:  # llama3: keep short wavelengths, divide long ones, blend in between
        turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
        blend = (
            (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        ).clamp(0, 1)
        frequency = frequency * (blend + (1 - blend) / scaling.factor)
    angles = torch.outer(torch.arange(rows, dtype=torch.float64), frequency)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=-1).to(like), torch.cat([-sin, sin], dim=-1).to(like)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # Swapping the halves is a roll by half a head; the minus sign of the first half is in the table.
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def _causal_mask(start: int, tokens: int, like: Tensor) -> Tensor | None:
    """[T, start + T] additive mask that hides each token's future; None for a single token, which has none."""
    if tokens == 1:
        return None
    hidden = torch.ones(tokens, start + tokens, dtype=torch.bool, device=like.device).triu(start + 1)
    return torch.zeros(tokens, start + tokens, dtype=like.dtype, device=like.device).masked_fill_(
        hidden, -torch.inf
    )
