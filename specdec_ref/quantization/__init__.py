"""Fewer bits per weight: grids, packing, activation-aware scaling, and the file that everything ships from."""

from specdec_ref.quantization.grid import QuantizedTensor, quantize, relative_error
from specdec_ref.quantization.linear import QuantizedLinear
from specdec_ref.quantization.packing import pack, packed_bytes, unpack
from specdec_ref.quantization.scheme import PER_CHANNEL, Scheme

__all__ = [
    "PER_CHANNEL",
    "QuantizedLinear",
    "QuantizedTensor",
    "Scheme",
    "pack",
    "packed_bytes",
    "quantize",
    "relative_error",
    "unpack",
]
