"""Explorers: sliders over a figure. Each has a static twin that shows the same without a running kernel."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from specdec_ref.lookahead import Costs
from specdec_ref.speedup import best_lookahead, expected_tokens, predicted_speedup
from specdec_ref.teaching import figures


def explorer(
    draw: Callable[..., Figure], sliders: dict[str, ipywidgets.Widget], *, description: str = ""
) -> ipywidgets.Widget:
    """Join sliders to a figure that is drawn anew whenever one moves.

    The picture is an image widget, not an `Output` area: what `interact` stores differs from run to run.

    Args:
        draw: takes the sliders' values by name and returns a figure.
        sliders: name -> widget with a `value`.
        description: a sentence above the sliders, also what a screen reader announces.
    """
    picture = ipywidgets.Image(format="png", layout={"max_width": "100%"})

    def redraw(_: object = None) -> None:
        picture.value = png(draw(**{name: slider.value for name, slider in sliders.items()}))

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([ipywidgets.Label(description), *sliders.values(), picture])


def png(figure: Figure) -> bytes:
    """The figure as a picture; it is closed."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90, metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def slider(label: str, value: float, low: float, high: float, step: float) -> Any:
    """A slider with a readable label that redraws when it is let go."""
    return ipywidgets.FloatSlider(
        value=value,
        min=low,
        max=high,
        step=step,
        description=label,
        continuous_update=False,
        style={"description_width": "12em"},
    )


def linear_costs(c: float, v4: float, longest: int = 8) -> Costs:
    """Costs of a machine whose v(K) grows evenly from 1 to v4 at K = 4 and on."""
    return Costs(c=c, v={k: 1 + (v4 - 1) * k / 4 for k in range(longest + 1)})


def break_even_figure(alpha: float = 0.6, c: float = 0.07, v4: float = 1.4, *, longest: int = 8) -> Figure:
    """Predicted speed over K for one acceptance probability, draft cost and verify cost; the static twin of the explorer."""
    costs = linear_costs(c, v4, longest)
    ks = range(longest + 1)
    speeds = [predicted_speedup(expected_tokens(alpha, k), k, costs) for k in ks]
    k, speed = best_lookahead(alpha, costs)
    with plt.rc_context(figures.STYLE):
        figure, ax = plt.subplots()
        ax.bar(ks, speeds, color=[figures.BLUE if s > 1 else figures.GREY for s in speeds])
        ax.axhline(1, color=figures.INK, linestyle="--", linewidth=1)
        verdict = f"best K = {k}: {speed:.2f}x" if k else "does not pay: decode plainly"
        ax.set(
            title=f"alpha = {alpha:.2f}, c = {c:.2f}, v(4) = {v4:.2f}: {verdict}",
            xlabel="K",
            ylabel="speed over plain",
        )
        ax.set_ylim(0, max(3.0, 1.1 * max(speeds)))
        figure.tight_layout()
    return figure


def break_even_explorer(alpha: float = 0.6, c: float = 0.07, v4: float = 1.4) -> ipywidgets.Widget:
    """Move acceptance, draft cost and verify cost, and see where speculation stops paying."""
    sliders = {
        "alpha": slider("acceptance alpha", alpha, 0, 1, 0.05),
        "c": slider("draft cost c", c, 0, 0.5, 0.01),
        "v4": slider("verify cost v(4)", v4, 1, 4, 0.1),
    }
    return explorer(
        break_even_figure, sliders, description="Speed over plain decoding; blue bars pay, grey ones do not."
    )


def break_even_grid(
    alphas: Sequence[float], v4s: Sequence[float], c: float = 0.07
) -> list[list[tuple[int, float]]]:
    """(best K, speed-up) for each alpha (rows) and v(4) (columns): the explorer as a table."""
    return [[best_lookahead(alpha, linear_costs(c, v4)) for v4 in v4s] for alpha in alphas]
