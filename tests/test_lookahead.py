"""Policies for K: the gate closes when speculation does not pay, looks again, and no policy looks at a drafted token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import ModelDrafter, PromptLookup
from specdec_ref.errors import UsageError
from specdec_ref.lookahead import BreakEvenGate, ConfidenceStop, Costs, FixedLookahead, RoundTiming
from specdec_ref.sampling import Sampling
from specdec_ref.trace import Round
from tests.helpers.lossless import Case, contrary_tables, p_values, remember_distributions
from tests.helpers.models import Scripted, TableModel, random_table
from tests.helpers.planted import drops_tokens_by_value
from tests.helpers.properties import examples

COSTS = Costs(c=0.1, v={0: 1.0, 1: 1.1, 2: 1.15, 4: 1.4, 8: 2.2})


def _round(drafted: int, accepted: int, reason: str = "fixed") -> Round:
    kind = "plain" if not drafted else "bonus" if accepted == drafted else "correction"
    return Round(drafted, reason, [0] * drafted, accepted, 0, kind)


def _play(gate: BreakEvenGate, accepts, rounds: int, seconds=lambda drafted: 0.0) -> list[int]:
    """K of each of so many rounds, of which each accepts what `accepts(round)` says (at most K)."""
    ks = []
    for index in range(rounds):
        k, reason = gate.next_k()
        ks.append(k)
        gate.observe(_round(k, min(k, accepts(index)), reason), RoundTiming(0.0, seconds(k)))
    return ks


def _rests(ks: list[int]) -> list[int]:
    """Lengths of the runs of plain rounds."""
    runs = "".join("." if k == 0 else "x" for k in ks).split("x")
    return [len(run) for run in runs if run]


# --- Fixed K and confidence ---------------------------------------------------------------------------------------------


def test_fixed_lookahead_always_says_k_and_learns_nothing():
    policy = FixedLookahead(3)
    for accepted in (0, 3, 1):
        assert policy.next_k() == (3, "fixed")
        policy.observe(_round(3, accepted), RoundTiming(1.0, 2.0))
    assert policy.confident(0.0) and not policy.uses_confidence


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_confidence_thresholds_outside_zero_to_one_are_refused(threshold):
    with pytest.raises(UsageError, match="threshold"):
        ConfidenceStop(4, threshold)


def test_confidence_stop_drafts_while_the_draft_is_at_least_as_sure_as_the_threshold():
    policy = ConfidenceStop(4, 0.5)
    assert policy.uses_confidence and policy.next_k()[0] == 4
    assert [policy.confident(x) for x in (0.49, 0.5, 0.9)] == [False, True, True]


def test_a_threshold_of_zero_is_fixed_lookahead_and_one_beyond_reach_is_plain_decoding():
    target, draft = TableModel(random_table(6, 1)), ModelDrafter(TableModel(random_table(6, 2)), 6)
    options = {"sampling": Sampling(1.0), "max_new_tokens": 40, "seed": 3}
    always = speculative(target, draft, [0], lookahead=ConfidenceStop(3, 0.0), **options)
    fixed = speculative(target, draft, [0], lookahead=3, **options)
    assert always.tokens == fixed.tokens
    assert [r.drafted for r in always.trace] == [r.drafted for r in fixed.trace]
    never = speculative(target, draft, [0], lookahead=ConfidenceStop(3, 1.0), **options)
    assert never.tokens == autoregressive(target, [0], **options).tokens
    assert {(r.kind, r.reason) for r in never.trace[:-1]} == {("plain", "confidence")}


def test_confidence_stop_is_lossless_when_sampling(monkeypatch):
    remember_distributions(monkeypatch)
    p, q = contrary_tables()
    case = Case(p, lambda: ModelDrafter(TableModel(q), 4), lambda: ConfidenceStop(4, 0.5), Sampling(1.2))
    texts, faults = case.run(first_seed=10_000)
    assert not faults
    assert min(p_values(texts, case).values()) > 1e-7


def test_a_stop_that_looks_at_the_drawn_token_would_be_noticed(monkeypatch):
    remember_distributions(monkeypatch)
    p, q = contrary_tables()
    case = Case(p, lambda: ModelDrafter(TableModel(q), 4), 4)
    case.verifier = drops_tokens_by_value(case.verifier)
    texts, _ = case.run(first_seed=10_000)
    assert min(p_values(texts, case).values()) < 1e-21


# --- Costs --------------------------------------------------------------------------------------------------------------


def test_round_costs_are_measured_interpolated_and_extrapolated():
    assert COSTS.round_cost(0) == 1.0
    assert COSTS.round_cost(4) == pytest.approx(0.4 + 1.4)
    assert COSTS.round_cost(3) == pytest.approx(0.3 + (1.15 + 1.4) / 2)
    assert COSTS.round_cost(6) == pytest.approx(0.6 + 1.8)
    assert COSTS.round_cost(10) == pytest.approx(1.0 + 2.6)


@given(
    st.floats(0, 1),
    st.lists(st.tuples(st.integers(1, 4), st.floats(0, 1)), min_size=1, max_size=6),
    st.integers(1, 30),
)
@examples(200)
def test_more_drafted_tokens_never_cost_less(c, increments, drafted):
    v, k, cost = {0: 1.0}, 0, 1.0
    for step, rise in increments:
        k, cost = k + step, cost + rise
        v[k] = cost
    costs = Costs(c, v)
    assert costs.round_cost(drafted) >= costs.round_cost(drafted - 1) - 1e-9
    assert costs.round_cost(drafted) >= costs.round_cost(drafted - 1) + c - 1e-9


# --- The gate -------------------------------------------------------------------------------------------------------------


def test_the_gate_stays_open_while_speculation_pays():
    gate = BreakEvenGate(FixedLookahead(4), COSTS)
    assert _play(gate, lambda i: 2, 200) == [4] * 200
    assert gate.gain == pytest.approx(3 / 1.8)


def test_the_gate_closes_after_its_probe_when_the_gain_is_below_one():
    gate = BreakEvenGate(FixedLookahead(4), COSTS, probe=8, rest=10)
    ks = _play(gate, lambda i: 0, 19)  # 1 token for 1.8 steps
    assert ks == [4] * 8 + [0] * 10 + [4]
    assert BreakEvenGate(FixedLookahead(4), COSTS).next_k() == (4, "fixed")


def test_a_closed_gate_says_so():
    gate = BreakEvenGate(FixedLookahead(4), COSTS, probe=2, rest=3)
    _play(gate, lambda i: 0, 2)
    assert gate.next_k() == (0, "gate")


def test_rests_double_with_each_failed_probe_and_are_capped():
    gate = BreakEvenGate(FixedLookahead(4), COSTS, probe=4, rest=3, longest_rest=20)
    ks = _play(gate, lambda i: 0, 150)
    assert _rests(ks)[:5] == [3, 6, 12, 20, 20]


def test_the_gate_opens_again_when_the_text_becomes_easy_and_its_rests_start_over():
    gate = BreakEvenGate(FixedLookahead(4), COSTS, probe=4, rest=3, longest_rest=50)
    _play(gate, lambda i: 0, 25)  # rests of 3 and 6, then into the one of 12
    easy = _play(gate, lambda i: 4, 60)
    assert easy[-40:] == [4] * 40
    hard = _play(gate, lambda i: 0, 60)
    assert _rests(hard)[0] == 3


def test_averages_decay_so_a_good_beginning_does_not_keep_the_gate_open():
    gate = BreakEvenGate(FixedLookahead(4), COSTS, window=16, probe=8, rest=5)
    _play(gate, lambda i: 4, 300)
    ks = _play(gate, lambda i: 0, 60)
    assert 0 in ks
    assert ks.index(0) < 40


def test_a_round_that_drafted_nothing_neither_opens_nor_closes_the_gate():
    gate = BreakEvenGate(FixedLookahead(4), COSTS, probe=2)
    for _ in range(50):
        gate.observe(_round(0, 0, "no match"), RoundTiming(0.0, 0.0))
    assert gate.gain is None
    assert gate.next_k() == (4, "fixed")


@pytest.mark.parametrize(("verify_seconds", "open_"), [(1.2, True), (2.0, False)])
def test_without_given_costs_rounds_are_timed_against_plain_ones(verify_seconds, open_):
    gate = BreakEvenGate(FixedLookahead(2), probe=4, rest=6)
    slow_start = iter([9.0])  # the first plain step also warms up
    seconds = lambda k: next(slow_start, 1.0) if k == 0 else verify_seconds  # noqa: E731
    ks = _play(gate, lambda i: i % 2, 40, seconds)  # 1.5 tokens per round
    assert ks[:2] == [0, 0], "plain rounds come first, to know what a plain step costs"
    assert ks[2:6] == [2] * 4
    assert (0 not in ks[2:]) == open_


def test_timed_gain_is_tokens_per_round_over_its_cost_in_plain_steps():
    gate = BreakEvenGate(FixedLookahead(2))
    _play(gate, lambda i: 2, 30, lambda k: 0.5 if k == 0 else 1.0)
    assert gate.gain == pytest.approx(3 / 2)


def test_the_gate_passes_the_inner_policy_s_questions_and_observations_on():
    seen = []

    class Inner(ConfidenceStop):
        def observe(self, done, timing):
            seen.append(done)

    gate = BreakEvenGate(Inner(3, 0.7), COSTS)
    assert gate.uses_confidence
    assert [gate.confident(x) for x in (0.6, 0.8)] == [False, True]
    _play(gate, lambda i: 1, 5)
    assert len(seen) == 5
    assert not BreakEvenGate(FixedLookahead(1)).uses_confidence


def test_in_a_generation_a_useless_draft_is_soon_left_alone():
    target = TableModel(random_table(6, 1))
    plain = autoregressive(target, [0], max_new_tokens=200)
    wrong = Scripted(lambda tokens, k: [(plain.tokens[len(tokens) - 1] + 1) % 6] * k)
    gate = BreakEvenGate(FixedLookahead(4), COSTS, probe=8, rest=32)
    result = speculative(target, wrong, [0], lookahead=gate, max_new_tokens=200)
    assert result.tokens == plain.tokens
    assert result.telemetry.k_trace[:41] == [4] * 8 + [0] * 32 + [4]
    assert {r.reason for r in result.trace[:-5]} == {"fixed", "gate"}
    assert result.telemetry.drafted < 0.2 * 4 * 200


def test_a_free_draft_keeps_its_gate_open():
    target = TableModel(random_table(6, 1))
    gate = BreakEvenGate(FixedLookahead(3), Costs(0.0, {0: 1.0, 3: 1.0}))
    result = speculative(target, PromptLookup(2, 1), [0, 1], lookahead=gate, max_new_tokens=60)
    assert "gate" not in {r.reason for r in result.trace}
