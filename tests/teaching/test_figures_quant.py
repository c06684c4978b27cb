"""The figures of notebook 06 show the numbers they are given."""

import matplotlib
import pytest
import torch

from specdec_ref.quantization import Scheme, quantize
from specdec_ref.quantization.awq import Inputs, search_scale

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from specdec_ref.teaching import figures, figures_quant


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.mark.parametrize("scheme", [Scheme(3), Scheme(4, 32, False)], ids=str)
def test_the_grid_under_the_weights_holds_every_rounded_weight(scheme):
    weight = torch.randn(32, generator=torch.Generator().manual_seed(0))
    points = figures_quant.grid_points(quantize(weight[None], scheme))
    assert len(points) == scheme.levels and points == sorted(points)
    for value in quantize(weight[None], scheme).dequantize()[0].tolist():
        assert min(abs(value - point) for point in points) < 1e-6
    ax = figures_quant.number_line(figures.axes("t", "x", ""), weight, scheme)
    assert len(ax.lines) == 34


def test_scaling_takes_error_off_the_channels_with_large_activations():
    generator = torch.Generator().manual_seed(5)
    x, weight = torch.randn(300, 64, generator=generator), torch.randn(32, 64, generator=generator)
    x[:, ::17] *= 20
    inputs = Inputs.of(x)
    scale, _ = search_scale([weight], inputs, Scheme(3), None, None)
    errors = {
        "plain": figures_quant.channel_error(weight, inputs, Scheme(3)),
        "scaled": figures_quant.channel_error(weight, inputs, Scheme(3), scale),
    }
    assert errors["scaled"][::17].sum() < 0.5 * errors["plain"][::17].sum()
    ax = figures_quant.channels(figures.axes("t", "x", "y"), errors, inputs.magnitude, most=10)
    assert [len(line.get_xdata()) for line in ax.lines] == [10, 10]


def test_the_frontier_keeps_what_nothing_beats():
    rows = [{"mb": mb, "kl": kl} for mb, kl in ((3, 0.5), (1, 2.0), (2, 0.6), (2, 1.0), (4, 0.5), (5, 0.1))]
    kept = figures_quant.frontier(rows, "mb", "kl")
    assert [(r["mb"], r["kl"]) for r in kept] == [(1, 2.0), (2, 0.6), (3, 0.5), (5, 0.1)]


def test_pareto_and_heat_draw_every_row():
    grid = [
        {"draft_bits": d, "target_bits": t, "tau": d + t / 10, "mb": d * t, "bits": d}
        for d in (3, 4)
        for t in (4, 8, 16)
    ]
    ax = figures_quant.heat(figures.axes("t", "x", "y"), grid, "tau")
    assert [text.get_text() for text in ax.texts] == ["3.40", "3.80", "4.60", "4.40", "4.80", "5.60"]
    ax = figures_quant.pareto(figures.axes("t", "x", "y"), {"a": grid}, "mb", "tau")
    assert len(ax.texts) == len(grid)
