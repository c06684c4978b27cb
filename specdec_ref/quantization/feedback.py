"""Rounding with error feedback: what one column's rounding spoils, the columns after it make good.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (2022). Columns are
rounded one after another; after each, the columns not yet rounded move by what minimises the output's error over the
calibration tokens, which the Gram matrix of the inputs gives in closed form. Scales and minima stay where they were, so
the result is on the same grid and in the same file: only which grid point a weight goes to changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdec_ref.quantization.grid import QuantizedTensor, quantize
from specdec_ref.quantization.scheme import Scheme

_BLOCK = 64
_DAMPING = 0.01
"""Added to the diagonal, as a share of its mean: the calibration tokens do not pin down every direction."""


def quantize_with_feedback(
    weight: Tensor, gram: Tensor, scheme: Scheme, *, clip: Tensor | None = None, where: str = "weight"
) -> QuantizedTensor:
    """Round a weight to its grid so that errors cancel in the output.

    Args:
        weight: [out, in].
        gram: [in, in], the mean of x^T x over calibration tokens, for the inputs that this weight reads.
        scheme, clip, where: as in `quantize`, which fixes the grid.

    Returns:
        a tensor with the scales and minima of `quantize(weight, scheme, clip=clip)` and better codes.
    """
    grid = quantize(weight, scheme, clip=clip, where=where)
    size = scheme.group_size(weight.shape[1])
    scale = grid.scale.float().repeat_interleave(size, 1)
    low = -scale * scheme.offset if grid.minimum is None else grid.minimum.float().repeat_interleave(size, 1)
    # Columns with the largest inputs first: they are rounded while most columns can still make good for them.
    order = gram.diagonal().argsort(descending=True, stable=True)
    left, scale, low = weight.float()[:, order].clone(), scale[:, order], low[:, order]
    upper = _inverse_factor(gram[order][:, order])
    codes = torch.empty_like(left, dtype=torch.uint8)
    for first in range(0, left.shape[1], _BLOCK):
        last = min(first + _BLOCK, left.shape[1])
        block, errors = left[:, first:last], torch.empty(len(left), last - first)
        for j in range(last - first):
            at = first + j
            code = ((block[:, j] - low[:, at]) / scale[:, at]).round_().clamp_(0, scheme.levels - 1)
            codes[:, at] = code.to(torch.uint8)
            error = (block[:, j] - (code * scale[:, at] + low[:, at])) / upper[at, at]
            block[:, j + 1 :] -= torch.outer(error, upper[at, at + 1 : last])
            errors[:, j] = error
        left[:, last:] -= errors @ upper[first:last, last:]
    back = torch.empty_like(codes)
    back[:, order] = codes
    return QuantizedTensor(back, grid.scale, grid.minimum, scheme)


def _inverse_factor(gram: Tensor) -> Tensor:
    """U, upper triangular, with U^T U = (gram + damping)^-1."""
    damped = gram.double()
    mean = damped.diagonal().mean().clamp(min=1e-12)
    damped = damped + torch.eye(len(damped), dtype=torch.float64) * (_DAMPING * mean)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True).float()
