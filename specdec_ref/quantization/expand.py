"""A small model in a large one's clothes: the same function, with the shapes and bytes of a phone-scale model.

Width is padded with zeros, heads and feed-forward channels with zeros, and extra layers add nothing to the residual stream.
The larger model computes exactly what the small one does, so everything about a 1.7B-class target or a 250M-class draft that
does not depend on quality (file sizes, memory, speed, exports) can be measured on a model whose every output is known.

RMSNorm divides by the mean square over the width, which padding dilutes: with D of W channels in use the gain is multiplied by
sqrt(D / W) and eps by D / W, and the norm is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdec_ref.errors import UsageError
from specdec_ref.model import ModelConfig
from specdec_ref.quantization.source import Source
from specdec_ref.quantization.tensors import HEAD_IDS, LAYERS, tensor_shapes


@dataclass(frozen=True)
class Shape:
    """The shape to grow to; head width and vocabulary stay."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int


TARGET_1_7B = Shape(2048, 33, 32, 8, 6144)
"""1.7B-class target for SmolLM2-135M: 1.69 billion parameters."""

DRAFT_250M = Shape(1024, 18, 16, 2, 2816)
"""250M-class draft for the kit's `draft-320x4`: 249 million parameters."""


def expanded(source: Source, shape: Shape) -> Source:
    """The same function in a larger model; its tensors are made when asked for, one at a time.

    Query heads stay with their key/value head: each group of query heads is padded to the new number of heads per group.

    Raises:
        UsageError: the shape is smaller than the model's somewhere, or the model has per-head norms (their eps is the same
            setting as the other norms', which has to change).
    """
    old = source.config
    if old.qk_norm:
        raise UsageError("models with query and key norms cannot be expanded", where=source.name)
    for name, least in vars(shape).items():
        if least < getattr(old, name):
            raise UsageError(
                f"{name} {least} is smaller than the model's {getattr(old, name)}", where="shape"
            )
    if shape.num_attention_heads % shape.num_key_value_heads:
        raise UsageError("query heads must share key/value heads evenly", where="shape")
    if (
        shape.num_attention_heads // shape.num_key_value_heads
        < old.num_attention_heads // old.num_key_value_heads
    ):
        raise UsageError("fewer query heads per key/value head than the model has", where="shape")
    used = old.hidden_size / shape.hidden_size
    raw: dict[str, Any] = {
        **source.raw,
        **vars(shape),
        "head_dim": old.head_dim,
        "rms_norm_eps": old.rms_norm_eps * used,
    }
    name = f"{source.name}-as-{shape.hidden_size}x{shape.num_hidden_layers}"
    new = Source(name, raw, {}, source.files)
    return Source(name, raw, _Expanded(source, new.config), source.files)


class _Expanded(Mapping[str, Tensor]):
    def __init__(self, source: Source, config: ModelConfig) -> None:
        self.source, self.old, self.new = source, source.config, config
        self.shapes = tensor_shapes(config)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes

    def __getitem__(self, name: str) -> Tensor:
        shape = self.shapes[name]
        if name == HEAD_IDS:
            return self.source.take(name)
        if name.startswith(LAYERS) and int(name.split(".")[2]) >= self.old.num_hidden_layers:
            # A layer of zeros adds nothing; its norms are ones so that no tool takes them for damaged.
            return torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
        small = self.source.take(name).float()
        if name.endswith("norm.weight"):
            small = small * (self.old.hidden_size / self.new.hidden_size) ** 0.5
        large = torch.zeros(shape)
        index = [torch.arange(size) for size in small.shape]
        if "q_proj" in name:
            index[0] = self._query_channels()
        elif name.endswith("o_proj.weight"):
            index[1] = self._query_channels()
        large[torch.meshgrid(*index, indexing="ij") if len(index) > 1 else index[0]] = small
        return large

    def _query_channels(self) -> Tensor:
        """Where each of the old query channels goes: its key/value head's group, padded."""
        old, new = self.old, self.new
        groups = torch.arange(old.num_key_value_heads) * (new.num_attention_heads // new.num_key_value_heads)
        heads = (groups[:, None] + torch.arange(old.num_attention_heads // old.num_key_value_heads)).flatten()
        return (heads[:, None] * old.head_dim + torch.arange(old.head_dim)).flatten()
