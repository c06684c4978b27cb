"""The explorer redraws when a slider moves, and its twin shows the same numbers without a kernel."""

from __future__ import annotations

import pytest

from specdec_ref.speedup import best_lookahead
from specdec_ref.teaching import figures, widgets


@pytest.fixture(autouse=True)
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")


def test_moving_a_slider_redraws() -> None:
    explorer = widgets.break_even_explorer()
    label, alpha, *_, picture = explorer.children
    before = picture.value
    alpha.value = 0.9
    assert label.value and picture.value != before
    assert bytes(picture.value).startswith(b"\x89PNG")


def test_same_values_draw_the_same_picture() -> None:
    assert widgets.png(widgets.break_even_figure()) == widgets.png(widgets.break_even_figure())


def test_grid_is_what_the_speed_model_says() -> None:
    grid = widgets.break_even_grid([0.3, 0.9], [1.0, 3.0], c=0.07)
    assert grid[1][1] == best_lookahead(0.9, widgets.linear_costs(0.07, 3.0))
    assert grid[0][1] == (0, 1.0), "poor guesses and dear verification do not pay"


def test_given_costs_have_the_stated_v4() -> None:
    costs = widgets.linear_costs(0.1, 1.8)
    assert (costs.v[0], costs.v[4], costs.c) == (1.0, 1.8, 0.1)


def test_figures_draw_what_they_are_given() -> None:
    ax = figures.lines(
        figures.axes("t", "x", "y"), [1, 2], {"a": [3, 4], "b": [5, 6]}, level=1, level_name="plain"
    )
    assert [line.get_label() for line in ax.lines] == ["a", "b", "plain"]
    ax = figures.bars(figures.axes("t", "x", "y"), {"first": 1.0, "second": 2.0})
    assert [text.get_text() for text in ax.texts] == ["1.00", "2.00"]
    figures.finish(ax)
    assert figures.architecture().axes
