"""A linear layer that keeps its weight packed: what a phone holds in memory, in readable PyTorch."""

from __future__ import annotations

from torch import Tensor, nn

from specdec_ref.linear import small_linear
from specdec_ref.quantization.grid import QuantizedTensor
from specdec_ref.quantization.packing import packed_bytes


class QuantizedLinear(nn.Module):
    """`y = x @ W.T + bias` with W unpacked and dequantized anew for every call.

    It defines what the packed-weight kernels of the runtime must compute; it makes no claim to be fast.

    Args:
        weight: the quantized W [out, in].
        bias: [out] or None.
    """

    packed: Tensor
    scale: Tensor
    minimum: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: QuantizedTensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.scheme = weight.scheme
        self.out_features, self.in_features = weight.shape
        self.register_buffer("packed", weight.packed())
        self.register_buffer("scale", weight.scale)
        self.register_buffer("minimum", weight.minimum)
        self.register_buffer("bias", bias)

    @property
    def quantized(self) -> QuantizedTensor:
        """The weight as integers."""
        return QuantizedTensor.from_packed(
            self.packed, self.scale, self.minimum, self.scheme, self.in_features
        )

    @property
    def weight(self) -> Tensor:
        """[out, in] float32."""
        return self.quantized.dequantize()

    @property
    def nbytes(self) -> int:
        """Bytes that the buffers hold."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def forward(self, x: Tensor) -> Tensor:
        """x [..., T, in] -> [..., T, out] in x's dtype."""
        return small_linear(x, self.quantized.dequantize(x.dtype), self.bias)

    def extra_repr(self) -> str:
        """Shown by `print(model)`."""
        row = packed_bytes(self.in_features, self.scheme.bits)
        return f"{self.in_features} -> {self.out_features}, {self.scheme}, {row} bytes a row"
