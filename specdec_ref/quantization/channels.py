"""Rescaling channels inside a layer without changing what it computes.

Before every linear (or pair of linears that read the same input) stands something that can absorb a scale per channel: a
norm's gain, or the rows of the linear that made the input. Multiply input column j of the weight by s[j], divide what
comes before by s[j], and the function is the same in exact arithmetic, but the weight that gets rounded is another one.
AWQ chooses s well; a random s takes weights off a grid they were already on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from specdec_ref.model import ModelConfig
from specdec_ref.quantization.source import Source
from specdec_ref.quantization.tensors import layer_prefix, tensor_shapes

Absorber = Literal["norm", "rows"]


@dataclass(frozen=True)
class Place:
    """A spot in a layer where channels can be rescaled.

    Attributes:
        name: of the input, as `Layer` calls the linear that reads it: qkv, out, gate_up or down.
        readers: weights whose columns are multiplied (names without the layer's prefix).
        writer: what is divided: a norm's gain, or the rows of a linear (and its bias).
        absorber: which of the two.
    """

    name: str
    readers: tuple[str, ...]
    writer: str
    absorber: Absorber


PLACES = (
    Place(
        "qkv",
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        "input_layernorm.weight",
        "norm",
    ),
    Place("out", ("self_attn.o_proj.weight",), "self_attn.v_proj.weight", "rows"),
    Place(
        "gate_up",
        ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "post_attention_layernorm.weight",
        "norm",
    ),
    Place("down", ("mlp.down_proj.weight",), "mlp.up_proj.weight", "rows"),
)
"""In the order of the forward pass. A value channel reaches `o_proj` unmixed (attention averages over tokens, channel by
channel), and an `up` channel is only multiplied by its gate."""


def scale_width(place: Place, config: ModelConfig) -> int:
    """Number of free scales at a place: input channels, but value channels where query heads share them."""
    if place.name == "out":
        return config.num_key_value_heads * config.head_dim
    return config.intermediate_size if place.name == "down" else config.hidden_size


def to_columns(place: Place, scale: Tensor, config: ModelConfig) -> Tensor:
    """Scales at a place -> one per input column of its readers."""
    if place.name != "out":
        return scale
    shared = config.num_attention_heads // config.num_key_value_heads
    by_head = scale.view(config.num_key_value_heads, 1, config.head_dim)
    return by_head.expand(-1, shared, -1).reshape(-1)


def from_columns(place: Place, statistic: Tensor, config: ModelConfig) -> Tensor:
    """One number per input column -> the mean over the columns that must share a scale."""
    if place.name != "out":
        return statistic
    return statistic.view(config.num_key_value_heads, -1, config.head_dim).mean(1).reshape(-1)


def rescale(layer: dict[str, Tensor], place: Place, scale: Tensor, config: ModelConfig) -> None:
    """Multiply the readers' columns by `scale` and divide the writer by it; the layer's function stays.

    Args:
        layer: float tensors by name without the layer's prefix; entries are replaced, no tensor is written to.
        place: one of `PLACES`.
        scale: [scale_width], positive.
        config: of the model.
    """
    columns = to_columns(place, scale, config)
    for name in place.readers:
        layer[name] = layer[name] * columns
    if place.absorber == "norm":
        layer[place.writer] = layer[place.writer] / scale
        return
    layer[place.writer] = layer[place.writer] / scale[:, None]
    bias = place.writer.replace(".weight", ".bias")
    if bias in layer:
        layer[bias] = layer[bias] / scale


def degridded(source: Source, *, sigma: float = 0.1, seed: int = 0) -> Source:
    """The de-gridded twin: the same function, whose weights lie on no grid.

    A target that came out of a 4-bit file is on that file's grid, and rounding it to the same grid again shows no error.
    Random channel scales (log-normal with this sigma) take every linear off it and leave outliers where they are.

    Returns:
        a source in memory, in float32.
    """
    config = source.config
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for index in range(config.num_hidden_layers):
        layer = source.layer(index)
        for place in PLACES:
            noise = torch.randn(scale_width(place, config), generator=generator)
            rescale(layer, place, (sigma * noise).exp(), config)
        tensors |= {layer_prefix(index) + name: tensor for name, tensor in layer.items()}
    for name in tensor_shapes(config):
        if name not in tensors:
            tensors[name] = source.take(name)
    return Source(f"{source.name}-degridded", source.raw, tensors, source.files)
