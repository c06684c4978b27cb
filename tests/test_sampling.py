"""From logits to probabilities to a token, against slow references that sort everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from specdec_ref import sampling as module
from specdec_ref.errors import SpecdecError, UsageError
from specdec_ref.sampling import Sampling, distribution, draw
from tests.helpers.properties import examples
from tests.helpers.slow_sampling import nearest_cut, slow_distribution, slow_draw

# Quarters are exact in every dtype, and a small range makes many ties.
LOGITS = st.lists(
    st.integers(-12, 12).map(lambda i: i / 4) | st.just(-math.inf), min_size=1, max_size=12
).filter(lambda row: max(row) > -math.inf)
SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-4, 0.25, 0.7, 1.0, 1.5, 100.0]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1e-6, 0.15, 0.5, 0.83, 0.95, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)
BELOW_ONE = 1 - 2**-53


@given(LOGITS, SETTINGS)
@examples(600)
def test_distribution_equals_the_reference_that_sorts_everything(logits, sampling):
    assume(nearest_cut(logits, sampling) > 1e-6 or sampling.top_p == 1 == sampling.min_p)
    fast = distribution(torch.tensor(logits), sampling)
    slow = slow_distribution(logits, sampling)
    assert fast.dtype == torch.float32
    np.testing.assert_allclose(fast.double().numpy(), slow, rtol=1e-4, atol=1e-7)
    assert ((fast > 0).numpy() == (slow > 1e-45)).all(), "a processor kept other tokens"


@given(st.integers(0, 2**31), SETTINGS)
@examples(40)
def test_distribution_of_a_large_vocabulary_equals_the_reference(seed, sampling):
    # 3000 tokens: more than the 1024 that top-p tries first. Flat rows need the second try, steep ones do not.
    generator = np.random.default_rng(seed)
    logits = np.round(generator.normal(size=3000) * generator.choice([0.01, 1, 6]) * 8) / 8
    assume(nearest_cut(logits, sampling) > 1e-7 or sampling.top_p == 1)
    fast = distribution(torch.tensor(logits), sampling)
    slow = slow_distribution(logits, sampling)
    np.testing.assert_allclose(fast.double().numpy(), slow, rtol=1e-3, atol=1e-7)
    assert ((fast > 1e-30).numpy() == (slow > 1e-30)).all()


def _kept(logits: list[float], sampling: Sampling) -> list[int]:
    return distribution(torch.tensor(logits), sampling).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("logits", "sampling", "kept"),
    [
        ([1.0, 3.0, 3.0, 3.0], Sampling(0.0), [1]),
        ([1.0, 3.0, 3.0, 3.0], Sampling(1.0, top_k=1), [1]),
        ([1.0, 3.0, 3.0, 3.0], Sampling(1.0, top_k=2), [1, 2]),
        ([3.0, 1.0, 3.0, 5.0], Sampling(1.0, top_k=2), [0, 3]),
        ([0.0, 0.0, 0.0, 0.0], Sampling(1.0, top_p=0.5), [0, 1]),
        ([0.0, 0.0, 0.0, 0.0], Sampling(1.0, top_p=0.51), [0, 1, 2]),
        ([0.0, 0.0, 0.0, 0.0], Sampling(1.0, top_p=0.01), [0]),
        ([0.0, 0.0, 0.0, 0.0], Sampling(1.0, min_p=1.0), [0, 1, 2, 3]),
        ([2.0, 3.0, 3.0, 1.0], Sampling(1.0, min_p=1.0), [1, 2]),
    ],
)
def test_ties_go_to_the_lowest_id(logits, sampling, kept):
    assert _kept(logits, sampling) == kept


def test_greedy_ties_go_to_the_lowest_id_in_any_memory_layout():
    row = torch.zeros(5000)
    row[[17, 1999, 4999]] = 1.0
    columns = torch.stack(
        [row, row.flip(0)], dim=1
    ).t()  # [2, V] with V as the slow dimension, as linear.py returns
    assert not columns.is_contiguous()
    assert distribution(columns, Sampling()).argmax(-1).tolist() == [17, 0]
    assert columns.argmax(-1).tolist() == [17, 0]


def test_processors_apply_in_order_temperature_top_k_top_p_min_p():
    logits = [math.log(x) for x in (0.40, 0.30, 0.20, 0.10)]
    # top-p counts mass after top-k: of the three left the first two hold 0.78, though only 0.7 before.
    assert _kept(logits, Sampling(1.0, top_k=3, top_p=0.75)) == [0, 1]
    assert _kept(logits, Sampling(1.0, top_p=0.75)) == [0, 1, 2]
    # Temperature comes before top-p: at 1/2 probabilities are squared and the first two hold 0.83.
    assert _kept(logits, Sampling(0.5, top_p=0.8)) == [0, 1]
    assert _kept(logits, Sampling(1.0, top_p=0.8)) == [0, 1, 2]
    # min-p is relative to the most likely token and so does not care what was cut before it.
    assert _kept(logits, Sampling(1.0, min_p=0.45)) == [0, 1, 2]
    assert _kept(logits, Sampling(0.5, min_p=0.45)) == [0, 1]
    assert _kept(logits, Sampling(1.0, top_k=2, top_p=0.99, min_p=0.45)) == [0, 1]


def test_equality_at_a_cut_keeps_no_more_than_needed():
    halves = [math.log(x) for x in (0.5, 0.25, 0.125, 0.125)]
    assert _kept(halves, Sampling(1.0, top_p=0.5)) == [0]
    assert _kept(halves, Sampling(1.0, top_p=0.75)) == [0, 1]
    assert _kept(halves, Sampling(1.0, min_p=0.25)) == [0, 1, 2, 3]


@given(LOGITS, SETTINGS)
@examples(200)
def test_probabilities_are_non_negative_and_sum_to_one(logits, sampling):
    p = distribution(torch.tensor(logits), sampling)
    assert torch.isfinite(p).all()
    assert (p >= 0).all()
    assert abs(float(p.sum(dtype=torch.float64)) - 1) < 1e-6
    assert not p[torch.tensor(logits) == -math.inf].any(), "a token that cannot occur got mass"


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-4, 1.0, 100.0, 1e30])
@pytest.mark.parametrize(
    "logits",
    [
        [3.5],
        [-math.inf, -2.0],
        [1e30, 1e30, -1e30],
        [1e37, 3e37, -3e38],
        [0.0] * 7,
        [-1e4, -1e4 + 1, -math.inf],
    ],
    ids=["V=1", "one possible", "huge with ties", "near the largest float", "all equal", "far below zero"],
)
def test_extreme_logits_and_temperatures_still_give_a_distribution(logits, temperature):
    p = distribution(torch.tensor(logits), Sampling(temperature))
    assert torch.isfinite(p).all()
    assert abs(float(p.sum(dtype=torch.float64)) - 1) < 1e-6
    assert float(p[max(range(len(logits)), key=logits.__getitem__)]) == float(p.max())


def test_temperature_goes_to_greedy_and_to_uniform():
    logits = torch.tensor([0.3, 0.9, -0.2])
    assert torch.equal(distribution(logits, Sampling(1e-4)), distribution(logits, Sampling()))
    torch.testing.assert_close(
        distribution(logits, Sampling(1e6)), torch.full((3,), 1 / 3), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("top_k", [0, 5, 6, 10**9])
def test_top_k_of_zero_or_at_least_the_vocabulary_keeps_all(top_k):
    logits = torch.tensor([0.1, -2.0, 1.0, 0.1, 3.0])
    assert torch.equal(distribution(logits, Sampling(0.8, top_k=top_k)), distribution(logits, Sampling(0.8)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_read_as_the_float32_numbers_they_hold(dtype):
    logits = (torch.randn(50, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    sampling = Sampling(0.7, top_k=20, top_p=0.9, min_p=0.01)
    p = distribution(logits, sampling)
    assert p.dtype == torch.float32
    assert torch.equal(p, distribution(logits.float(), sampling))


def test_rows_are_processed_one_by_one():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(5))
    for sampling in (Sampling(), Sampling(0.6, top_k=4, top_p=0.8)):
        together = distribution(logits, sampling)
        assert together.shape == (4, 9)
        assert all(torch.equal(together[i], distribution(logits[i], sampling)) for i in range(4))


def test_logits_are_left_as_they_were():
    logits = torch.randn(9, generator=torch.Generator().manual_seed(5))
    before = logits.clone()
    distribution(logits, Sampling(0.6, top_k=4, top_p=0.8, min_p=0.2))
    assert torch.equal(logits, before)


def test_top_p_falls_back_to_a_full_sort_when_the_first_candidates_hold_too_little(monkeypatch):
    logits = torch.randn(200, generator=torch.Generator().manual_seed(8)).mul(0.3)
    expected = distribution(logits, Sampling(1.0, top_p=0.9))
    monkeypatch.setattr(module, "_CANDIDATES", 4)
    assert torch.equal(distribution(logits, Sampling(1.0, top_p=0.9)), expected)
    assert int((expected > 0).sum()) > 100


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("min_p", math.nan),
    ],
)
def test_parameters_outside_their_range_are_refused_by_name(parameter, value):
    with pytest.raises(UsageError, match=parameter.replace("_", "-")):
        Sampling(**{parameter: value})


def test_only_temperature_zero_is_greedy():
    assert Sampling().greedy and Sampling(0.0, top_k=5).greedy
    assert not Sampling(1e-6).greedy


@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-30, 0.1, 0.25, 0.3, 1.0]), min_size=1, max_size=10).filter(any),
    st.floats(0, BELOW_ONE) | st.sampled_from([0.0, BELOW_ONE, 0.25, 0.5]),
)
@examples(400)
def test_draw_equals_a_running_sum_and_never_returns_a_weightless_token(weights, uniform):
    row = torch.tensor(weights, dtype=torch.float64)
    token = draw(row, uniform)
    assert weights[token] > 0
    assert token == slow_draw(row.numpy(), uniform)


@pytest.mark.parametrize("uniform", [0.0, 0.5, BELOW_ONE])
@pytest.mark.parametrize("weight", [5e-324, 1e-45, 1.0, 1.5, 1.9999999, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draw_survives_boundary_uniforms_and_tiny_totals(weight, uniform, dtype):
    row = torch.tensor([0.0, weight, 0.0, 0.0], dtype=dtype)
    if row.any():
        assert draw(row, uniform) == 1


def test_draw_takes_the_first_and_last_possible_token_at_the_ends():
    weights = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    assert draw(weights, 0.0) == 1
    assert draw(weights, BELOW_ONE) == 4


def test_draw_at_an_exact_boundary_takes_the_later_token():
    assert [draw(torch.tensor([0.25, 0.25, 0.5]), u) for u in (0.25 - 2**-53, 0.25, 0.5 - 2**-53, 0.5)] == [
        0,
        1,
        1,
        2,
    ]


def test_draw_covers_each_token_in_proportion_to_its_weight():
    weights = torch.tensor([1.0, 0.0, 3.0, 4.0])  # eighths
    drawn = [draw(weights, (i + 0.5) / 80) for i in range(80)]
    assert [drawn.count(token) for token in range(4)] == [10, 0, 30, 40]


def test_nan_logits_are_an_error_and_not_a_choice() -> None:
    with pytest.raises(SpecdecError, match="NaN logits"):
        distribution(torch.tensor([float("nan"), 1.0, 2.0]), Sampling(temperature=1.0))
