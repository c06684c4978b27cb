"""How weights are rounded: bits per weight, weights per scale, and whether zero is the middle of the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from specdec_ref.errors import UsageError

PER_CHANNEL = 0
"""As a group size: one scale for the whole row (an output channel of the linear)."""


@dataclass(frozen=True)
class Scheme:
    """A grid for the weights [out, in] of a linear layer: one scale for every `group` neighbours along `in`.

    Symmetric, b bits: w = scale * c with c in -2^(b-1) … 2^(b-1)-1 and scale = max|w| / (2^(b-1) - 1/2). At 4 bits and
    group 32 this is XNNPACK's `qb4w` as torchao makes it (bfloat16 scales), at 8 bits per channel its `qc8w` (float32
    scales): ExecuTorch takes these integers as they are.
    Asymmetric: w = scale * c + minimum with c in 0 … 2^b-1, both float16 (float32 per channel): at 4 bits and group 32
    this is llama.cpp's `Q4_1`.

    Attributes:
        bits: 2 to 8.
        group: weights that share a scale, a multiple of 8; `PER_CHANNEL` (0) for one scale per row.
        symmetric: see above.

    Raises:
        UsageError: a value outside these ranges.
    """

    bits: int
    group: int = 32
    symmetric: bool = True

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 2 <= self.bits <= 8:
            raise UsageError(f"cannot quantize to {self.bits} bits", where="bits", fix="use 2 to 8 bits")
        if type(self.group) is not int or self.group < 0 or self.group % 8:
            raise UsageError(
                f"group {self.group} is not a positive multiple of 8",
                where="group",
                fix="use 32, 64, 128, or channel for one scale per row",
            )
        if type(self.symmetric) is not bool:
            raise UsageError(f"symmetric must be true or false, found {self.symmetric!r}", where="scheme")

    @property
    def levels(self) -> int:
        """Number of grid points, 2^bits."""
        return 1 << self.bits

    @property
    def offset(self) -> int:
        """What is added to a symmetric code to store it without a sign; 0 if asymmetric."""
        return self.levels // 2 if self.symmetric else 0

    @property
    def scale_dtype(self) -> torch.dtype:
        """Type that scales and minima are stored in."""
        if self.group == PER_CHANNEL:
            return torch.float32
        return torch.bfloat16 if self.symmetric else torch.float16

    def group_size(self, columns: int, *, where: str = "weight") -> int:
        """Weights per scale in rows of `columns` weights.

        Raises:
            UsageError: the group does not divide the row.
        """
        if self.group == PER_CHANNEL:
            return columns
        if columns % self.group:
            fits = [str(g) for g in (32, 64, 128) if columns % g == 0] + ["channel"]
            raise UsageError(
                f"group {self.group} does not divide a row of {columns} weights",
                where=where,
                fix=f"use --group {' or '.join(fits)}",
            )
        return self.group

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes that a weight [rows, columns] takes: packed codes, scales and minima."""
        per_row = (
            columns // self.group_size(columns) * self.scale_dtype.itemsize * (1 if self.symmetric else 2)
        )
        return rows * (math.ceil(columns * self.bits / 8) + per_row)

    def __str__(self) -> str:
        group = "channel" if self.group == PER_CHANNEL else f"g{self.group}"
        return f"int{self.bits}-{group}-{'sym' if self.symmetric else 'asym'}"

    def to_json(self) -> dict[str, Any]:
        """As stored in a file's metadata."""
        return {"bits": self.bits, "group": self.group, "symmetric": self.symmetric}

    @classmethod
    def from_json(cls, value: object) -> Scheme:
        """The inverse of `to_json`.

        Raises:
            UsageError: not such an object, or a value out of range.
        """
        if not isinstance(value, Mapping) or set(value) != {"bits", "group", "symmetric"}:
            raise UsageError(f"a scheme has bits, group and symmetric, found {value!r}", where="scheme")
        return cls(**value)
