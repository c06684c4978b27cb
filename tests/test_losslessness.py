"""Sampling is lossless: chi-square and total-variation tests that pass the kit and fail every planted fault.

How often the check may be wrong is worked out in `tests/helpers/lossless.py`; how surely it catches each planted fault is
asserted here (a p-value far below the alarm level leaves no doubt about other seeds).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdec_ref.acceptance import match_verifier, rejection_verifier
from specdec_ref.drafters import FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.lookahead import BreakEvenGate, ConfidenceStop, Costs, FixedLookahead
from specdec_ref.sampling import Sampling
from tests.helpers import planted
from tests.helpers.lossless import (
    ALARM,
    RUNS,
    Case,
    assert_lossless,
    chi_square,
    chi_square_p_value,
    contrary_tables,
    p_values,
    plain,
    remember_distributions,
    total_variation_p_value,
)
from tests.helpers.models import Scripted, TableModel
from tests.helpers.planted import TableDrafter
from tests.helpers.planted_judges import JUDGES

P, Q = contrary_tables()
_, Q_REDUCED = contrary_tables(columns=2)
ALL = Sampling(0.8, top_k=3, top_p=0.9, min_p=0.05)


@pytest.fixture(autouse=True)
def _fast_tables(monkeypatch):
    remember_distributions(monkeypatch)


def model():
    return ModelDrafter(TableModel(Q), 4)


def reduced():
    return ModelDrafter(TableModel(Q_REDUCED, head_ids=[1, 3]), 4)


def lookup():
    return PromptLookup(2, 1)


def argmax():
    def script(tokens, k):
        for _ in range(k):
            tokens.append(int(Q[tokens[-1]].argmax()))
        return tokens[len(tokens) - k :]

    return Scripted(script)


def gate():
    return BreakEvenGate(FixedLookahead(2), Costs(c=0.5, v={0: 1.0, 4: 2.0}), probe=1, rest=1)


CASES = {
    "rejection, model, K=1": Case(P, model, 1),
    "rejection, model, K=2, top-k": Case(P, model, 2, Sampling(1.0, top_k=2)),
    "rejection, model, K=2, min-p": Case(P, model, 2, Sampling(1.5, min_p=0.3)),
    "rejection, model, K=4, cold": Case(P, model, 4, Sampling(0.6)),
    "rejection, model, K=4, top-p": Case(P, model, 4, Sampling(1.0, top_p=0.75)),
    "rejection, model, K=4, all processors": Case(P, model, 4, ALL),
    "rejection, reduced vocabulary, K=1": Case(P, reduced, 1),
    "rejection, reduced vocabulary, K=4, hot": Case(P, reduced, 4, Sampling(1.4)),
    "rejection, prompt lookup, K=1": Case(P, lookup, 1),
    "rejection, prompt lookup, K=4, top-p": Case(P, lookup, 4, Sampling(1.0, top_p=0.85)),
    "rejection, argmax draft, K=2": Case(P, argmax, 2),
    "rejection, lookup first, K=4": Case(P, lambda: FirstMatch(PromptLookup(3, 2), model()), 4),
    "rejection, confidence stop": Case(P, model, lambda: ConfidenceStop(4, 0.45)),
    "rejection, break-even gate": Case(P, model, gate),
    "match, model, K=1, cold": Case(P, model, 1, Sampling(0.6), match_verifier),
    "match, model, K=4, all processors": Case(P, model, 4, ALL, match_verifier),
    "match, reduced vocabulary, K=2": Case(P, reduced, 2, verifier=match_verifier),
    "match, prompt lookup, K=4, top-k": Case(P, lookup, 4, Sampling(1.0, top_k=3), match_verifier),
    "match, lookup first, K=4": Case(
        P, lambda: FirstMatch(PromptLookup(3, 2), model()), 4, verifier=match_verifier
    ),
    "plain decoding": Case(P, model, 0, ALL, decode=plain),
    "the textbook loop without a fault": Case(
        P, model, 4, verifier=planted.right_verifier, decode=planted.textbook()
    ),
    "the table drafter without a fault": Case(P, lambda: TableDrafter(Q), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_texts_are_distributed_as_the_target_s(name):
    assert_lossless(CASES[name])


def test_the_cases_accept_and_reject_and_have_bonus_tokens():
    """A check on a draft that is never or always right would prove little."""
    slots = set()
    for name, case in CASES.items():
        if case.decode is plain:
            continue
        counts, kinds = np.zeros((2, 4)), set()
        target, drafter = TableModel(case.target), case.drafter()
        for seed in range(60):
            lookahead = case.lookahead if isinstance(case.lookahead, int) else case.lookahead()
            options = {"verifier": case.verifier, "sampling": case.sampling, "max_new_tokens": case.length}
            result = case.decode(target, drafter, case.prompt, lookahead=lookahead, seed=seed, **options)
            kinds |= {r.kind for r in result.trace}
            for row, field in enumerate(("per_position_judged", "per_position_accepted")):
                values = getattr(result.telemetry, field)
                counts[row, : len(values)] += values
        assert kinds >= {"correction", "bonus"}, name
        tried = counts[0] > 0
        assert (counts[0] > counts[1])[tried][:2].all(), f"{name}: one of the first slots is never rejected"
        assert (counts[1] > 0)[tried][:2].all(), f"{name}: one of the first slots is never accepted"
        slots |= set(counts[1].nonzero()[0])
    assert slots == {0, 1, 2, 3}


# --- Planted faults ---------------------------------------------------------------------------------------------------

LARGE = 600 + Q  # near 600 bfloat16 has steps of 4
BIASED = {
    "F1 argmax draft judged by the soft q": Case(P, lambda: TableDrafter(Q, argmax=True), 2),
    "F2 drawn from bfloat16 logits": Case(
        P, lambda: TableDrafter(LARGE, drawn=planted.drawn_from_bfloat16), 2
    ),
    "F2 drawn at another temperature": Case(
        P, lambda: TableDrafter(Q, drawn=planted.drawn_at_another_temperature), 2
    ),
    "F3 processors on the draft only": Case(P, model, 2, ALL, planted.processors_on_the_draft_only),
    "F3 temperature on the draft only": Case(
        P, model, 4, Sampling(0.6), planted.temperature_on_the_draft_only
    ),
    "one uniform for all slots": Case(P, model, 4, verifier=planted.one_uniform_for_all_slots),
    "q of the next slot": Case(P, model, 4, verifier=planted.q_of_the_next_slot),
    "drafts dropped by the token drawn": Case(
        P, model, 4, verifier=planted.drops_tokens_by_value(rejection_verifier)
    ),
    **{
        f"{name} (K=4)": Case(P, model, 4, verifier=planted.verifier_with(judge))
        for name, judge in JUDGES.items()
    },
}


@pytest.mark.parametrize("name", BIASED)
def test_the_check_rejects_a_planted_bias(name):
    case = BIASED[name]
    texts, _ = case.run()
    worst = min(p_values(texts, case).values())
    assert worst < ALARM**3, f"caught too narrowly to be sure of it: {worst}"


MISCOUNTED = {
    "overshoots": "not exactly max_new_tokens",  # F5
    "forgets the bonus": "a round without a token of the target's own",
    "re-sends the context": "a pass over other than drafted + 1 tokens",
}


@pytest.mark.parametrize("fault", MISCOUNTED)
def test_the_check_rejects_a_planted_miscount(fault):
    _, faults = Case(P, model, 4, decode=planted.textbook(fault)).run(runs=100)
    assert MISCOUNTED[fault] in faults


def test_a_cheaper_draft_without_the_processors_would_still_be_lossless():
    """F3 the other way round costs acceptance but no correctness: any q will do that the token was drawn from."""

    class Raw(ModelDrafter):
        def propose(self, request):
            object.__setattr__(request, "sampling", Sampling(1.0))
            return super().propose(request)

    assert_lossless(Case(P, lambda: Raw(TableModel(Q), 4), 4, ALL))


# --- The check itself -------------------------------------------------------------------------------------------------


def test_the_check_itself_holds_its_level():
    """Simulated unbiased samplers: tail probabilities of the chi-square are those of its limit law, also far out."""
    generator = np.random.default_rng(0)
    law = CASES["plain decoding"].law().sum(axis=(2, 3, 4, 5)).ravel()
    counts = generator.multinomial(RUNS, law, size=15_000)
    values = np.array([chi_square_p_value(chi_square(row, law)) for row in counts])
    for level in (1e-1, 1e-2, 1e-3):
        observed = (values < level).mean()
        assert observed < level + 6 * np.sqrt(level / len(values)), f"too many alarms at level {level}"
    assert values.min() > ALARM
    assert min(total_variation_p_value(row, law) for row in counts[:3000]) > 1e-3


def test_the_check_notices_the_impossible_and_a_shift():
    law = np.array([0.5, 0.3, 0.2, 0.0])
    assert chi_square_p_value(chi_square(np.array([750, 450, 299, 1]), law)) == 0
    assert chi_square_p_value(chi_square(np.array([750, 450, 300, 0]), law)) == 1
    shifted = np.array([870, 380, 250, 0])  # total variation 0.08
    assert chi_square_p_value(chi_square(shifted, law)) < ALARM
    assert total_variation_p_value(np.array([900, 350, 250, 0]), law) < ALARM


def test_the_tables_disagree_enough_to_show_a_bias():
    distance = (P.softmax(-1) - Q.softmax(-1)).abs().sum(-1) / 2
    assert distance.mean() > 0.3
    assert torch.isfinite(P).all()
