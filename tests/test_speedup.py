"""The speed model agrees with what it models, and its edge cases are right."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.errors import UsageError
from specdec_ref.lookahead import Costs
from specdec_ref.model import Decoder, ModelConfig
from specdec_ref.runner import Runner
from specdec_ref.speedup import (
    best_lookahead,
    break_even_alpha,
    bytes_per_step,
    expected_tokens,
    measure_costs,
    predicted_speedup,
    read_bandwidth,
    roofline_tokens_per_s,
)

FREE = Costs(c=0.0, v={k: 1.0 for k in range(9)})
CHEAP = Costs(c=0.1, v={k: 1 + 0.05 * k for k in range(9)})
DEAR = Costs(c=0.5, v={k: 1 + 0.8 * k for k in range(9)})


def tiny_runner() -> Runner:
    config = ModelConfig(96, 32, 2, 4, 2, 8, 64, 256, tie_word_embeddings=True)
    model = Decoder(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return Runner(model, 200)


@given(st.floats(0, 0.999), st.integers(0, 12))
def test_expected_tokens_is_the_geometric_sum_of_the_paper(alpha: float, k: int) -> None:
    assert math.isclose(expected_tokens(alpha, k), (1 - alpha ** (k + 1)) / (1 - alpha), rel_tol=1e-9)


def test_expected_tokens_multiplies_the_slots_own_probabilities() -> None:
    assert expected_tokens([0.5, 0.8], 3) == pytest.approx(1 + 0.5 + 0.4 + 0.32)
    assert expected_tokens([], 4) == 1.0


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_acceptance_outside_zero_to_one_is_refused(alpha: float) -> None:
    with pytest.raises(UsageError, match="acceptance probabilities"):
        expected_tokens(alpha, 2)


def test_free_drafts_and_verification_give_all_of_tau() -> None:
    assert predicted_speedup(3.0, 4, FREE) == 3.0


def test_best_lookahead_is_the_maximum_over_k() -> None:
    k, gain = best_lookahead(0.7, CHEAP)
    assert gain == max(predicted_speedup(expected_tokens(0.7, j), j, CHEAP) for j in range(1, 9))
    assert predicted_speedup(expected_tokens(0.7, k), k, CHEAP) == gain


def test_best_lookahead_is_zero_where_speculation_does_not_pay() -> None:
    assert best_lookahead(0.3, DEAR) == (0, 1.0)


@given(st.integers(1, 8))
def test_at_the_break_even_acceptance_speed_is_the_plain_speed(k: int) -> None:
    alpha = break_even_alpha(k, CHEAP)
    assert predicted_speedup(expected_tokens(alpha, k), k, CHEAP) == pytest.approx(1.0, abs=1e-6)


def test_no_acceptance_breaks_even_when_rounds_cost_more_than_they_can_bring() -> None:
    assert break_even_alpha(4, Costs(c=1.0, v={0: 1.0, 4: 5.0})) == math.inf


def test_measured_costs_cover_every_k_and_leave_the_models_usable() -> None:
    target, draft = tiny_runner(), tiny_runner()
    costs, seconds = measure_costs(target, draft, longest=3, context=20, rounds=2)
    assert sorted(costs.v) == [0, 1, 2, 3]
    assert costs.v[0] == 1.0
    assert costs.c > 0
    assert seconds["target_step"] > 0
    assert target.length == 20
    assert measure_costs(target, None, longest=1, context=5, rounds=1)[0].c == 0.0


def test_bytes_per_step_counts_body_head_and_cached_keys_and_values() -> None:
    runner = tiny_runner()
    body = sum(p.numel() for n, p in runner.model.named_parameters() if n != "embed")
    assert bytes_per_step(runner) == 4 * (body + 96 * 32)
    assert bytes_per_step(runner, 10) - bytes_per_step(runner) == 2 * 2 * 2 * 8 * 10 * 4
    assert roofline_tokens_per_s(runner, 1e9) == pytest.approx(1e9 / bytes_per_step(runner))


def test_bandwidth_is_that_of_a_real_memory() -> None:
    assert 1e8 < read_bandwidth(16, 2) < 1e13


@pytest.mark.parametrize("v", [{}, {0: 1.0}, {4: 1.5, 8: 2.0}])
def test_costs_without_a_plain_step_or_a_larger_k_are_refused(v: dict[int, float]) -> None:
    with pytest.raises(UsageError, match="K = 0"):
        Costs(c=0.1, v=v)
