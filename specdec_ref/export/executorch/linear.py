"""Linear layers as XNNPACK computes them: float weights, or integer weights and activations rounded to 8 bit on the way in.

The forward passes below *are* the fake-quantised reference: the same codes, scales and rounding as the integer kernels,
in float arithmetic. The exporter recognises the pattern and replaces it by those kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.errors import UsageError


@dataclass(frozen=True)
class Precision:
    """How the weights of linear layers are stored.

    Attributes:
        name: what `--precision` calls it.
        bits: of a weight; 32 is float.
        group: weights along the input that share a scale; 0: all of a row.
        kernel: XNNPACK's name of what computes it.
    """

    name: str
    bits: int
    group: int
    kernel: str

    @property
    def is_float(self) -> bool:
        return self.bits == 32


PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp32", 32, 0, "f32-gemm"),
        Precision("int8", 8, 0, "qd8-f32-qc8w-gemm"),
        Precision("int4", 4, 32, "qd8-f32-qb4w-gemm"),
    )
}


def precision(name: str) -> Precision:
    """Look one up by name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in PRECISIONS:
        raise UsageError(f"unknown precision {name!r}", fix=f"use one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


@dataclass(frozen=True)
class Codes:
    """A quantised matrix: weight[o, i] = scale[o, i // group] * codes[o, i].

    Attributes:
        codes: [out, in] int8, within -2^(bits-1) … 2^(bits-1) - 1.
        scale: [out, in / group] float32; for 4 bit of values that bfloat16 holds exactly, since XNNPACK stores them so.
    """

    codes: Tensor
    scale: Tensor

    def dequantize(self) -> Tensor:
        """The float32 matrix [out, in] that the codes stand for."""
        blocks = self.codes.to(torch.float32).unflatten(1, (self.scale.shape[1], -1))
        return (blocks * self.scale[..., None]).flatten(1)


def round_to_nearest(weight: Tensor, precision: Precision) -> Codes:
    """Quantise a matrix [out, in], symmetric about zero: the largest weight of a group gets the largest code.

    Raises:
        UsageError: its width is no multiple of the group.
    """
    group = precision.group or weight.shape[1]
    if weight.shape[1] % group:
        raise UsageError(
            f"a matrix of width {weight.shape[1]} has no whole groups of {group}",
            where=precision.name,
            fix="use int8 for this model",
        )
    top = 2 ** (precision.bits - 1) - 1
    blocks = weight.detach().unflatten(1, (-1, group))
    scale = (blocks.abs().amax(dim=2) / top).clamp_min(torch.finfo(torch.float32).tiny)
    if precision.bits == 4:
        scale = scale.to(torch.bfloat16).to(torch.float32)
    codes = (blocks / scale[..., None]).round().clamp(-top - 1, top)
    return Codes(codes.flatten(1).to(torch.int8), scale)


def linear(weight: Tensor, bias: Tensor | None, precision: Precision) -> nn.Module:
    """The layer that multiplies by `weight` [out, in] at this precision."""
    bias = None if bias is None else _own(bias)
    if precision.is_float:
        return FloatLinear(_own(weight), bias)
    return QuantLinear(round_to_nearest(weight, precision), bias, precision.bits)


def _own(tensor: Tensor) -> Tensor:
    # XNNPACK's exporter writes a tensor's whole storage: one that is part of another (gate and up) needs its own.
    tensor = tensor.detach().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


class FloatLinear(nn.Module):
    """x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        return F.linear(x, self.weight, self.bias)


class QuantLinear(nn.Module):
    """Each token's activations are rounded to 255 levels over their own range, then multiplied by integer weights."""

    codes: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor | None

    def __init__(self, weight: Codes, bias: Tensor | None, bits: int) -> None:
        super().__init__()
        self.register_buffer("codes", weight.codes)
        self.register_buffer("scale", weight.scale)
        self.register_buffer("zero", torch.zeros_like(weight.scale, dtype=torch.int8))
        self.register_buffer("bias", bias)
        self.bits = bits
        self.block = (1, weight.codes.shape[1] // weight.scale.shape[1])
        self.limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def forward(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        from torchao.quantization.quant_primitives import dequantize_affine

        weight = dequantize_affine(
            self.codes,
            self.block,
            self.scale,
            self.zero,
            torch.int8,
            *self.limits,
            output_dtype=torch.float32,
        )
        return F.linear(round_activations(x), weight, self.bias)


def round_activations(x: Tensor) -> Tensor:
    """x [T, in] -> the same, rounded to 8 bit: one scale and zero point per token, asymmetric."""
    from torchao.quantization.quant_primitives import (
        MappingType,
        choose_qparams_affine,
        dequantize_affine,
        quantize_affine,
    )

    block = (1, x.shape[1])
    scale, zero = choose_qparams_affine(
        x, MappingType.ASYMMETRIC, block, torch.int8, -128, 127, zero_point_dtype=torch.int8
    )
    codes = quantize_affine(x, block, scale, zero, torch.int8, -128, 127)
    return dequantize_affine(codes, block, scale, zero, torch.int8, -128, 127, output_dtype=torch.float32)
