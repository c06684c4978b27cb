"""Weights <-> grid: grouped round-to-nearest, the baseline that every cleverer method must beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_ref.errors import CheckpointError
from specdec_ref.quantization.packing import pack, unpack
from specdec_ref.quantization.scheme import Scheme

_SMALLEST_SCALE = torch.finfo(torch.float32).eps
"""Keeps a group of zeros from dividing by zero; torchao's bound, so that scales stay the same numbers."""


@dataclass(frozen=True)
class QuantizedTensor:
    """A weight [out, in] as integers on a grid.

    Attributes:
        codes: [out, in] uint8, 0 … 2^bits - 1 (a symmetric code has `scheme.offset` added).
        scale: [out, in / group], in the scheme's dtype.
        minimum: like `scale`, the value of code 0; None if symmetric.
        scheme: the grid.
    """

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None
    scheme: Scheme

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def signed(self) -> Tensor:
        """[out, in] int8: the integers c of a symmetric grid, as ExecuTorch and Core ML store them."""
        if not self.scheme.symmetric:
            raise ValueError("codes of an asymmetric grid have no sign")
        return (self.codes.to(torch.int16) - self.scheme.offset).to(torch.int8)

    @property
    def nbytes(self) -> int:
        """Bytes in a file and in memory: packed codes, scales and minima."""
        return self.scheme.nbytes(*self.shape)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [out, in] that the integers stand for, computed in float32."""
        grouped = self.codes.view(len(self.codes), self.scale.shape[1], -1).float()
        scale = self.scale.float()[..., None]
        if self.minimum is None:
            weight = (grouped - self.scheme.offset) * scale
        else:
            weight = grouped * scale + self.minimum.float()[..., None]
        return weight.flatten(1).to(dtype)

    def packed(self) -> Tensor:
        """The codes as bytes [out, ceil(in bits / 8)], see `packing`."""
        return pack(self.codes, self.scheme.bits)

    @classmethod
    def from_packed(
        cls, packed: Tensor, scale: Tensor, minimum: Tensor | None, scheme: Scheme, columns: int
    ) -> QuantizedTensor:
        """The inverse of `packed`; `columns` is `in`."""
        return cls(unpack(packed, scheme.bits, columns), scale, minimum, scheme)


def quantize(
    weight: Tensor, scheme: Scheme, *, clip: Tensor | None = None, where: str = "weight"
) -> QuantizedTensor:
    """Round every weight to the nearest point of its group's grid.

    The scale is rounded to its stored type first and codes are chosen for that scale, so nothing is lost in the file.

    Args:
        weight: [out, in], any floating type; computed in float32.
        scheme: the grid.
        clip: [out, in / group] in (0, 1]: the grid spans only this share of each group's range, and what lies beyond is
            clipped to its ends. Default: the whole range.
        where: what error messages call the weight.

    Raises:
        UsageError: the group does not divide `in`.
        CheckpointError: a weight is NaN or infinite, or too large for the scale's type.
    """
    size = scheme.group_size(weight.shape[1], where=where)
    if not torch.isfinite(weight).all():
        raise CheckpointError(
            "a weight is NaN or infinite", where=where, fix="take a sound copy of the model"
        )
    grouped = weight.float().view(len(weight), -1, size)
    scale, minimum = _grid(grouped, scheme, clip)
    if not torch.isfinite(scale).all() or (minimum is not None and not torch.isfinite(minimum).all()):
        raise CheckpointError(f"a weight is too large for {scheme.scale_dtype} scales", where=where)
    codes = _steps(grouped, scale, minimum, scheme).add_(scheme.offset).to(torch.uint8)
    return QuantizedTensor(codes.flatten(1), scale, minimum, scheme)


def rounded(weight: Tensor, scheme: Scheme, *, clip: Tensor | None = None) -> Tensor:
    """`quantize(weight, scheme, clip=clip).dequantize()`, bit for bit, without the integers: for searches over many grids."""
    grouped = weight.float().view(len(weight), -1, scheme.group_size(weight.shape[1]))
    scale, minimum = _grid(grouped, scheme, clip)
    weight = _steps(grouped, scale, minimum, scheme).mul_(scale.float()[..., None])
    if minimum is not None:
        weight += minimum.float()[..., None]
    return weight.flatten(1)


def _grid(grouped: Tensor, scheme: Scheme, clip: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Scale and minimum [out, groups], as they are stored, of weights [out, groups, size]."""
    low, high = grouped.aminmax(dim=-1)
    if clip is not None:
        low, high = low * clip, high * clip
    if scheme.symmetric:
        scale = torch.maximum(-low, high) / (scheme.levels / 2 - 0.5)
        return scale.clamp(min=_SMALLEST_SCALE).to(scheme.scale_dtype), None
    scale = ((high - low) / (scheme.levels - 1)).clamp(min=_SMALLEST_SCALE).to(scheme.scale_dtype)
    return scale, low.to(scheme.scale_dtype)


def _steps(grouped: Tensor, scale: Tensor, minimum: Tensor | None, scheme: Scheme) -> Tensor:
    """Nearest grid points as whole numbers, symmetric ones with their sign; a new float tensor like `grouped`."""
    steps = grouped if minimum is None else grouped - minimum.float()[..., None]
    steps = steps * (1.0 / scale.float())[..., None]
    return steps.round_().clamp_(-scheme.offset, scheme.levels - 1 - scheme.offset)


def relative_error(weight: Tensor, quantized: QuantizedTensor) -> float:
    """Frobenius norm of the rounding error over that of the weight."""
    return float((quantized.dequantize() - weight.float()).norm() / weight.float().norm())
