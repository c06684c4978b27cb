"""The record of a generation: counters by hand, their sums, and how they read when there is nothing to count."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.acceptance import VERIFIERS
from specdec_ref.decoding import speculative
from specdec_ref.drafters import FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.sampling import Sampling
from specdec_ref.trace import Generation, Round, Telemetry
from tests.helpers.models import TableModel, random_table
from tests.helpers.properties import examples

TRACE = [
    Round(3, "fixed", [5, 6, 7], 1, 9, "correction"),
    Round(3, "fixed", [5, 6, 7], 3, 8, "bonus"),
    Round(0, "gate", [], 0, 4, "plain"),
    Round(3, "no match", [2], 0, 1, "correction"),
    Round(2, "budget", [3, 0], 2, None, "stop"),
]


def test_a_round_emits_its_accepted_tokens_and_the_target_s_own():
    assert [r.emitted for r in TRACE] == [[5, 9], [5, 6, 7, 8], [4], [1], [3, 0]]


def test_counters_of_a_trace_counted_by_hand():
    assert asdict(Telemetry.of(TRACE, draft_passes=11)) == {
        "rounds": 5,
        "drafted": 9,
        "accepted": 6,
        "emitted": 10,
        "target_passes": 5,
        "draft_passes": 11,
        "per_position_drafted": [4, 3, 2],
        "per_position_judged": [4, 3, 1],
        "per_position_accepted": [3, 2, 1],
        "k_trace": [3, 3, 0, 3, 2],
    }


def test_rates_of_a_trace_computed_by_hand():
    telemetry = Telemetry.of(TRACE)
    assert telemetry.tau == 10 / 5
    assert telemetry.alpha == [3 / 4, 2 / 3, 1 / 1]
    assert telemetry.acceptance_rate == 6 / 9


@pytest.mark.parametrize("trace", [[], [Round(0, "plain", [], 0, 1, "plain")]])
def test_nothing_drafted_is_no_division_by_zero(trace):
    telemetry = Telemetry.of(trace)
    assert (telemetry.alpha, telemetry.acceptance_rate) == ([], 0.0)
    assert telemetry.tau == float(len(trace))
    assert telemetry.per_position_drafted == []


ROUNDS = st.builds(
    lambda drafted, accepted, more: Round(
        drafted + more, "fixed", [1] * drafted, min(accepted, drafted), 2, "plain"
    ),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 2),
)


@given(st.lists(ROUNDS, max_size=8), st.lists(ROUNDS, max_size=8))
@examples(200)
def test_the_sum_of_two_telemetries_is_the_telemetry_of_both_traces(first, second):
    assert Telemetry.of(first, 3) + Telemetry.of(second, 4) == Telemetry.of(first + second, 7)
    assert Telemetry.of(first, 3) + Telemetry() == Telemetry.of(first, 3)


@given(st.lists(ROUNDS, max_size=8))
@examples(200)
def test_counters_agree_with_one_another(trace):
    t = Telemetry.of(trace)
    assert t.emitted == t.accepted + t.rounds
    assert sum(t.per_position_drafted) == t.drafted
    assert sum(t.per_position_accepted) == t.accepted
    assert sum(t.per_position_judged) == t.accepted + sum(r.accepted < len(r.drafted) for r in trace)


def test_speed_is_tokens_over_decode_time_alone():
    def generation(tokens):
        return Generation(tokens, "length", [], Telemetry(), {"prefill": 5.0, "decode": 2.0})

    assert generation([1, 2, 3]).tokens_per_s == 1.5
    assert generation([]).tokens_per_s == 0.0


def test_records_are_plain_data_that_json_can_hold():
    whole = Generation([1], "eos", TRACE, Telemetry.of(TRACE), {"prefill": 0.1, "decode": 0.2})
    again = json.loads(json.dumps(asdict(whole)))
    assert [Round(**r) for r in again["trace"]] == TRACE
    assert Telemetry(**again["telemetry"]) == whole.telemetry


@given(
    st.integers(0, 2**31),
    st.integers(0, 6),
    st.sampled_from(list(VERIFIERS)),
    st.integers(0, 5),
    st.integers(0, 30),
)
@examples(150)
def test_the_books_balance_however_a_text_ends(seed, k, verifier, end, max_new_tokens):  # F6
    target = TableModel(random_table(6, seed, spread=1.0), capacity=24)
    drafter = FirstMatch(PromptLookup(2, 2), ModelDrafter(TableModel(target.table * 0.7), 6))
    result = speculative(
        target, drafter, [0, 1, 2], lookahead=k, verifier=VERIFIERS[verifier], sampling=Sampling(1.0),
        eos_ids=[end], max_new_tokens=max_new_tokens, seed=seed,
    )  # fmt: skip
    t, trace = result.telemetry, result.trace
    assert t.emitted == len(result.tokens) == t.accepted + sum(r.next is not None for r in trace)
    assert t.accepted <= t.drafted
    assert t.rounds == t.target_passes == len(trace) == len(t.k_trace) == len(target.passes)
    for counts, total in ((t.per_position_drafted, t.drafted), (t.per_position_accepted, t.accepted)):
        assert sum(counts) == total
        assert all(a >= b for a, b in itertools.pairwise(counts)), "a later slot cannot be reached more often"
    positions = (t.per_position_drafted, t.per_position_judged, t.per_position_accepted)
    assert all(d >= j >= a for d, j, a in zip(*positions, strict=True))
    assert sum(t.per_position_judged) == t.accepted + sum(r.kind == "correction" for r in trace)
    assert all(0 <= a <= 1 for a in [*t.alpha, t.acceptance_rate])
    assert all(len(r.drafted) <= r.k <= k for r in trace)
    assert t.tau == (t.emitted / t.rounds if t.rounds else 0.0)
    assert [token for r in trace for token in r.emitted] == result.tokens
    assert end not in result.tokens[:-1]
    expected = "eos" if result.tokens[-1:] == [end] else "context" if max_new_tokens > 21 else "length"
    assert result.finish_reason == expected
    assert all(r.kind == "stop" for r in trace if r.next is None) and sum(r.next is None for r in trace) <= 1
