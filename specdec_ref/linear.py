"""Matrix products of a few tokens: the part of decoding that decides its speed.

Decoding multiplies a large weight by 1 … K+1 token vectors. BLAS libraries are tuned for squarer shapes, and several ways
of writing the *same* product differ by 2–5x at these sizes, in a different order on every processor. `fastest_form` times
the candidates once per process, dtype and number of tokens on a weight that does not fit the caches, and keeps the best.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PROBE_MATRICES = 16

SMALL_T = 16
"""Above this many tokens the library's own `F.linear` is used without timing: such products are no longer memory-bound."""


def _row_major(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


def _weight_first(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(weight, x.t()).t()


def _weight_first_padded(x: Tensor, weight: Tensor) -> Tensor:
    # One column takes the matrix-vector path of some libraries, which is slower than multiplying two columns.
    return torch.mm(weight, x.expand(2, -1).t())[:, :1].t()


def _row_blocks(x: Tensor, weight: Tensor) -> Tensor:
    # One small product per block of rows, spread over the threads: some libraries split a single tall one badly.
    blocks = next(n for n in (16, 8, 4, 2, 1) if weight.shape[0] % n == 0)
    y = torch.bmm(weight.view(blocks, -1, weight.shape[1]), x.t().expand(blocks, -1, -1))
    return y.flatten(0, 1).t()


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x @ W.T": _row_major,
    "(W @ x.T).T": _weight_first,
    "(W @ [x x].T).T, first column": _weight_first_padded,
    "(W @ x.T).T by blocks of rows": _row_blocks,
}
"""Equivalent formulations of `x @ weight.T` for x [T, in] and weight [out, in]; the padded one only for T = 1."""

_chosen: dict[tuple[torch.dtype, int], str] = {}
_probe: dict[torch.dtype, list[Tensor]] = {}


def fastest_form(dtype: torch.dtype, tokens: int) -> str:
    """Return the key of `FORMS` that is fastest here for `tokens` token vectors of `dtype`, timing them on first use.

    The probe reads 113 MB of weights (in float32), more than a cache holds: about 0.1 s per number of tokens.
    """
    key = (dtype, tokens)
    if key not in _chosen:
        _chosen[key] = min(_time_forms(dtype, tokens).items(), key=lambda item: item[1])[0]
    return _chosen[key]


def _time_forms(dtype: torch.dtype, tokens: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    if dtype not in _probe:
        _probe[dtype] = [torch.randn(3072, 576, generator=generator).to(dtype) for _ in range(PROBE_MATRICES)]
    weights = _probe[dtype]
    x = torch.randn(tokens, 576, generator=generator).to(dtype)
    seconds: dict[str, float] = {}
    for name, form in FORMS.items():
        if form is _weight_first_padded and tokens != 1:
            continue
        runs = []
        for _ in range(4):  # the first one warms caches and thread pools; the minimum drops it
            start = time.perf_counter()
            for weight in weights:
                form(x, weight)
            runs.append(time.perf_counter() - start)
        seconds[name] = min(runs[1:])
    return seconds


def report() -> dict[str, str]:
    """The formulations chosen so far, as `{"float32 T=1": "x @ W.T", …}`, for `specdec doctor` and benchmark files."""
    return {
        f"{str(dtype).removeprefix('torch.')} T={tokens}": form
        for (dtype, tokens), form in sorted(_chosen.items(), key=str)
    }


def small_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` in the fastest form for a few tokens on a CPU; plain `F.linear` for everything else.

    Args:
        x: [..., T, in]. Only an unbatched [T, in] with T <= SMALL_T, without gradients, is worth choosing a form for.
        weight: [out, in].
        bias: [out] or None.

    Returns:
        [..., T, out]
    """
    if x.dim() != 2 or x.shape[0] > SMALL_T or x.device.type != "cpu" or torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    y = FORMS[fastest_form(x.dtype, x.shape[0])](x, weight)
    return y if bias is None else y + bias


class Linear(nn.Module):
    """`y = x @ weight.T + bias`, fast for the 1 … K+1 token vectors of a decoding step.

    Args:
        in_features: width of the input.
        out_features: width of the output.
        bias: whether a bias is added.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., T, in]; returns [..., T, out]."""
        return small_linear(x, self.weight, self.bias)
