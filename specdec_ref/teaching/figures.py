"""Figures of the notebooks in one plain style: helpers that draw, and leave all computing to their callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GREY, BLUE, ORANGE, GREEN, RED = "#1a1a1a", "#8a8a8a", "#0b6fa4", "#d9730d", "#2a7f3f", "#b3261e"
"""Distinguishable without colour vision, and on paper: always used together with a label, marker or hatch."""

MARKERS = "osD^v"

STYLE: dict[str, Any] = {
    "figure.figsize": (6.4, 3.4),
    "figure.dpi": 110,
    "savefig.bbox": "tight",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, GREEN, RED, GREY]),
}


def axes(title: str, x: str, y: str, *, size: tuple[float, float] | None = None) -> Axes:
    """A new figure with one titled and labelled pair of axes."""
    with plt.rc_context(STYLE):
        _, ax = plt.subplots(figsize=size)
        ax.set(title=title, xlabel=x, ylabel=y)
    return ax


def show(figure: Figure) -> None:
    """Show a figure below the cell and let go of it; the cell prints no repr."""
    plt.show()
    plt.close(figure)


def finish(ax: Axes) -> None:
    """Tidy the margins of the figure that `ax` belongs to, and show it."""
    figure = ax.get_figure(root=True)
    if figure is not None:
        figure.tight_layout()
        show(figure)


def lines(
    ax: Axes,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    level: float | None = None,
    level_name: str = "",
) -> Axes:
    """Draw named lines over x, each with its own marker, and a dashed level such as "plain decoding".

    Args:
        ax: axes from `axes`.
        x: positions.
        series: name -> values, one per position.
        level: height of the dashed line; None draws none.
        level_name: its label.
    """
    for marker, (name, values) in zip(MARKERS * len(series), series.items(), strict=False):
        ax.plot(x, values, marker=marker, markersize=4, label=name)
    if level is not None:
        ax.axhline(level, color=INK, linewidth=1, linestyle="--", label=level_name or None)
    ax.legend()
    return ax


def bars(
    ax: Axes, values: Mapping[str, float], *, form: str = "{:.2f}", colours: Sequence[str] = (BLUE,)
) -> Axes:
    """Draw horizontal bars, first on top, each with its value written beside it."""
    names = list(values)
    heights = [values[name] for name in names]
    drawn = ax.barh(names, heights, color=[colours[i % len(colours)] for i in range(len(names))])
    ax.bar_label(drawn, [form.format(h) for h in heights], padding=3)
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.margins(x=0.15)
    return ax


def boxes(
    ax: Axes, places: Mapping[str, tuple[float, float]], arrows: Sequence[tuple[str, str, str]]
) -> Axes:
    """Draw a diagram of labelled boxes joined by labelled arrows.

    Args:
        ax: axes; they are hidden.
        places: label -> centre of its box.
        arrows: (from, to, label), naming boxes by their labels.
    """
    frame = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": BLUE, "linewidth": 1.5}
    for start, end, label in arrows:
        (x0, y0), (x1, y1) = places[start], places[end]
        arrow = {"arrowstyle": "-|>", "color": GREY, "shrinkA": 34, "shrinkB": 34, "linewidth": 1.3}
        ax.annotate("", xy=(x1, y1), xytext=(x0, y0), arrowprops=arrow)
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        if y0 == y1:
            ax.text(x, y + 0.06, label, fontsize=8, color=INK, ha="center", va="bottom")
        else:
            ax.text(x + 0.04, y, label, fontsize=8, color=INK, ha="left", va="center")
    for label, (x, y) in places.items():
        ax.text(x, y, label, ha="center", va="center", fontsize=9, bbox=frame)
    ax.set_axis_off()
    ax.margins(0.2)
    return ax


def architecture() -> Figure:
    """What the kit builds, from the models to the phone; returned unshown."""
    draft, target = "draft model\n(small)", "target model\n(large)"
    accept, text = "accept or\ncorrect", "text"
    policy, export = "lookahead policy\n(gate, thermal)", "export: Core ML,\nExecuTorch"
    engine, phone = "engine: C++,\nSwift, Kotlin", "phone"
    places = dict(zip((draft, target, accept, text), ((0, 1), (1, 1), (2, 1), (3, 1)), strict=True))
    places |= dict(zip((policy, export, engine, phone), ((0, 0), (1, 0), (2, 0), (3, 0)), strict=True))
    arrows = [
        (draft, target, "K tokens"),
        (target, accept, "one pass"),
        (accept, text, "1 … K+1\ntokens"),
        (policy, draft, "K"),
        (target, export, "quantise"),
        (export, engine, "models"),
        (engine, phone, "package"),
    ]
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(8.4, 3.4))
        boxes(ax, places, arrows)
        ax.set(title="top: notebooks 00–04; bottom: 05–12", xlim=(-0.5, 3.4), ylim=(-0.4, 1.4))
    return figure
