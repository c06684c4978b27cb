"""What to do to each tensor of a model: which grid, or which plain type, and how many bytes that makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from specdec_ref.errors import UsageError
from specdec_ref.model import ModelConfig
from specdec_ref.quantization.container import Layout
from specdec_ref.quantization.packing import packed_bytes
from specdec_ref.quantization.scheme import PER_CHANNEL, Scheme
from specdec_ref.quantization.tensors import EMBEDDING, HEAD, HEAD_IDS, tensor_shapes

Method = Literal["rtn", "awq", "awq-gptq"]
METHODS: tuple[Method, ...] = ("rtn", "awq", "awq-gptq")

CODES, SCALE, MINIMUM = ".codes", ".scale", ".minimum"
"""What the three tensors of a quantized weight add to its name."""


@dataclass(frozen=True)
class Recipe:
    """How a model is quantized.

    Norms and biases stay in float32: they are a thousandth of the bytes. Embedding and output head are named separately
    from the linears of the body, because they are different in kind (of an embedding one row is read, a head decides the
    ranking of all tokens) and in a small draft most of the bytes.

    Attributes:
        method: `rtn`, round to nearest; `awq`, activation-aware scaling and clipping of the body first; or `awq-gptq`, the
            same and then rounding with error feedback.
        body: grid of all linears in the layers; None: float16.
        embedding: grid of the token embedding and, where the two are tied, of the head; None: float16.
        head: grid of an untied head; None: float16.
    """

    method: Method
    body: Scheme | None
    embedding: Scheme | None
    head: Scheme | None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UsageError(
                f"unknown scheme {self.method!r}", where="scheme", fix=f"use {' or '.join(METHODS)}"
            )
        if self.method != "rtn" and self.body is None:
            raise UsageError("AWQ needs bits for the body to be rounded to", where="bits")

    def scheme_of(self, name: str, shape: tuple[int, ...]) -> Scheme | None:
        """The grid of a tensor; None if it is stored as plain numbers."""
        if len(shape) != 2:
            return None
        if name == EMBEDDING:
            return self.embedding
        return self.head if name == HEAD else self.body

    def plain_dtype(self, name: str, shape: tuple[int, ...]) -> torch.dtype:
        """The type of a tensor that is not quantized."""
        if name == HEAD_IDS:
            return torch.int32
        return torch.float16 if len(shape) == 2 else torch.float32

    def layout(self, config: ModelConfig) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Every tensor of the quantized file.

        Raises:
            UsageError: a group does not divide the rows of a weight.
        """
        layout: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for name, shape in tensor_shapes(config).items():
            scheme = self.scheme_of(name, shape)
            if scheme is None:
                layout[name] = (self.plain_dtype(name, shape), shape)
                continue
            rows, columns = shape
            groups = columns // scheme.group_size(columns, where=name)
            layout[name + CODES] = (torch.uint8, (rows, packed_bytes(columns, scheme.bits)))
            layout[name + SCALE] = (scheme.scale_dtype, (rows, groups))
            if not scheme.symmetric:
                layout[name + MINIMUM] = (scheme.scale_dtype, (rows, groups))
        return layout

    def to_json(self) -> dict[str, Any]:
        """As stored in a file's metadata."""
        schemes = {"body": self.body, "embedding": self.embedding, "head": self.head}
        return {"method": self.method} | {k: None if s is None else s.to_json() for k, s in schemes.items()}

    @classmethod
    def from_json(cls, value: object) -> Recipe:
        """The inverse of `to_json`.

        Raises:
            UsageError: not such an object, or a value out of range.
        """
        if not isinstance(value, Mapping) or set(value) != {"method", "body", "embedding", "head"}:
            raise UsageError(
                f"a recipe has method, body, embedding and head, found {value!r}", where="recipe"
            )
        schemes = {
            k: None if value[k] is None else Scheme.from_json(value[k]) for k in ("body", "embedding", "head")
        }
        return cls(value["method"], **schemes)

    def __str__(self) -> str:
        return f"{self.method} {self.body or 'float16'}"


def scheme_for(bits: int, group: int = 32) -> Scheme | None:
    """The symmetric grid of so many bits: 8 have one scale a row (XNNPACK's `qc8w`); 16 stand for float16."""
    if bits == 16:
        return None
    return Scheme(bits, PER_CHANNEL if bits == 8 else group)


def recipe(method: Method = "rtn", bits: int = 4, group: int = 32, *, embedding_bits: int = 8) -> Recipe:
    """A symmetric recipe: the same grid for all linears of the body, and one for embedding and head."""
    if bits == 16:
        return Recipe("rtn", None, None, None)
    embedding = scheme_for(embedding_bits, group)
    return Recipe(method, scheme_for(bits, group), embedding, embedding)


def layout_bytes(layout: Layout) -> int:
    """Bytes of the tensors of a layout, header left out."""
    return sum(int(torch.Size(shape).numel()) * dtype.itemsize for dtype, shape in layout.values())
