"""Figures of notebook 06: a grid under a handful of weights, what scaling does to a channel, and the frontier of precisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from specdec_ref.quantization.awq import Inputs
from specdec_ref.quantization.grid import QuantizedTensor, quantize
from specdec_ref.quantization.scheme import Scheme
from specdec_ref.teaching.figures import BLUE, GREY, INK, MARKERS


def grid_points(quantized: QuantizedTensor, row: int = 0, group: int = 0) -> list[float]:
    """All values that the weights of one group can take, ascending."""
    scheme = quantized.scheme
    scale = float(quantized.scale[row, group])
    low = -scale * scheme.offset if quantized.minimum is None else float(quantized.minimum[row, group])
    return [low + scale * code for code in range(scheme.levels)]


def number_line(ax: Axes, weight: Tensor, scheme: Scheme) -> Axes:
    """Draw one group of weights [n] above the grid that it is rounded to, each joined to its grid point.

    Args:
        ax: axes from `figures.axes`.
        weight: [n], one group.
        scheme: the grid; its group must divide n.
    """
    quantized = quantize(weight[None], scheme)
    rounded = quantized.dequantize()[0]
    for before, after in zip(weight.tolist(), rounded.tolist(), strict=True):
        ax.plot([before, after], [1, 0], color=GREY, linewidth=0.7)
    points = grid_points(quantized)
    ax.plot(points, [0] * len(points), "|", color=INK, markersize=16)
    ax.plot(weight, [1] * len(weight), MARKERS[0], color=BLUE, markersize=5)
    ax.set_yticks([0, 1], [f"grid ({scheme})", "weights"])
    ax.grid(False, axis="y")
    ax.set_ylim(-0.4, 1.4)
    return ax


def channel_error(weight: Tensor, inputs: Inputs, scheme: Scheme, columns: Tensor | None = None) -> Tensor:
    """Share of the output's squared error that each input channel causes by itself, [in].

    Args:
        weight: [out, in].
        inputs: statistics of what it reads.
        scheme: the grid.
        columns: [in] scales multiplied into the weight before rounding and divided out after; None: plain rounding.
    """
    scale = 1.0 if columns is None else columns
    difference = quantize(weight * scale, scheme).dequantize() / scale - weight
    return difference.pow(2).sum(0) * inputs.gram.diagonal()


def channels(ax: Axes, errors: Mapping[str, Tensor], magnitude: Tensor, *, most: int = 40) -> Axes:
    """Draw the error that each channel causes, channels with the largest activations first, one line a method."""
    order = magnitude.argsort(descending=True)[:most]
    for marker, (name, error) in zip(MARKERS, errors.items(), strict=False):
        ax.plot(range(len(order)), error[order], marker=marker, markersize=3, label=name)
    ax.set_yscale("log")
    ax.legend()
    return ax


def frontier(rows: Sequence[Mapping[str, Any]], x: str, y: str) -> list[Mapping[str, Any]]:
    """The rows that no other row beats in both `x` and `y` (less is better in both), by ascending `x`."""
    best: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda r: (r[x], r[y])):
        if not best or row[y] < best[-1][y]:
            best.append(row)
    return best


def pareto(
    ax: Axes, series: Mapping[str, Sequence[Mapping[str, Any]]], x: str, y: str, *, label: str = "bits"
) -> Axes:
    """Draw rows as points, each labelled with its `label`, and join each series' frontier.

    Args:
        ax: axes from `figures.axes`.
        series: name -> rows of a benchmark's JSON.
        x, y: keys of what is drawn; less is better.
        label: key of what is written beside a point.
    """
    for marker, (name, rows) in zip(MARKERS, series.items(), strict=False):
        (line,) = ax.plot([r[x] for r in rows], [r[y] for r in rows], marker, markersize=6, label=name)
        kept = frontier(rows, x, y)
        ax.plot([r[x] for r in kept], [r[y] for r in kept], color=line.get_color(), linewidth=1)
        for row in rows:
            ax.annotate(
                str(row[label]), (row[x], row[y]), xytext=(5, 4), textcoords="offset points", fontsize=8
            )
    ax.legend()
    return ax


def heat(ax: Axes, grid: Sequence[Mapping[str, Any]], key: str, *, form: str = "{:.2f}") -> Axes:
    """Draw one figure of the grid of `specdec bench quant` as a table of colours, draft bits down and target bits across."""
    drafts = sorted({row["draft_bits"] for row in grid})
    targets = sorted({row["target_bits"] for row in grid})
    table = np.full((len(drafts), len(targets)), np.nan)
    for row in grid:
        table[drafts.index(row["draft_bits"]), targets.index(row["target_bits"])] = row[key]
    ax.imshow(table, cmap="cividis", aspect="auto")
    middle = (np.nanmin(table) + np.nanmax(table)) / 2
    for i, j in np.ndindex(*table.shape):
        colour = "white" if table[i, j] < middle else INK
        ax.text(j, i, form.format(table[i, j]), ha="center", va="center", color=colour)
    ax.set_xticks(range(len(targets)), [str(bits) for bits in targets])
    ax.set_yticks(range(len(drafts)), [str(bits) for bits in drafts])
    ax.grid(False)
    return ax
