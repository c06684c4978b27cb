"""The pure acceptance step is exact by integration, not by luck; the verifiers built on it agree where they must."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.acceptance import (
    VERIFIERS,
    Draft,
    Verdict,
    accept_or_resample,
    greedy_verifier,
    match_verifier,
    rejection_verifier,
)
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.lookahead import ConfidenceStop
from specdec_ref.rng import Uniforms
from specdec_ref.sampling import Sampling
from tests.helpers.exact import output_law, random_distribution
from tests.helpers.models import Scripted, TableModel, random_table
from tests.helpers.planted_judges import JUDGES, residual_never_falls_back
from tests.helpers.properties import examples

BELOW_ONE = 1 - 2**-53
SEEDS = st.integers(0, 2**31)


@given(SEEDS, st.integers(2, 5), st.integers(0, 3), st.integers(0, 3))
@examples(30)
def test_output_is_distributed_exactly_as_p_whatever_q(seed, vocab, p_zeros, q_zeros):
    p = random_distribution(seed, vocab, zeros=min(p_zeros, vocab - 1))
    q = random_distribution(seed + 1, vocab, zeros=min(q_zeros, vocab - 1))
    np.testing.assert_allclose(output_law(accept_or_resample, p, q), p.double().numpy(), atol=1e-6)


@given(SEEDS, st.integers(0, 3))
@examples(20)
def test_argmax_drafts_are_exact_when_q_is_one_hot(seed, token):  # F1
    p = random_distribution(seed, 4, zeros=seed % 3)
    q = torch.zeros(4).index_fill_(0, torch.tensor(token), 1.0)
    np.testing.assert_allclose(output_law(accept_or_resample, p, q), p.double().numpy(), atol=1e-6)


def test_argmax_drafts_judged_by_the_soft_q_are_biased():  # F1, planted
    p, q = random_distribution(1, 4), random_distribution(2, 4)
    token = int(q.argmax())
    one_hot = torch.zeros(4).index_fill_(0, torch.tensor(token), 1.0)

    def judge(p, drawn_from, token, u_accept, u_resample):
        return accept_or_resample(p, q, token, u_accept, u_resample)

    assert abs(output_law(judge, p, one_hot) - p.numpy()).max() > 0.01


def test_a_token_drawn_from_another_q_than_the_ratio_s_is_biased():  # F2, planted
    p, q, other = random_distribution(1, 4), random_distribution(2, 4), random_distribution(2, 4, spread=0.7)

    def judge(p, drawn_from, token, u_accept, u_resample):
        return accept_or_resample(p, q, token, u_accept, u_resample)

    assert abs(output_law(judge, p, other) - p.numpy()).max() > 0.01


@pytest.mark.parametrize("name", JUDGES)
def test_integration_rejects_the_planted_judge(name):
    worst = 0.0
    for seed in range(4):
        p, q = random_distribution(seed, 4), random_distribution(seed + 100, 4)
        worst = max(worst, abs(output_law(JUDGES[name], p, q) - p.numpy()).max())
    assert worst > 0.02


@given(SEEDS, st.integers(1, 6), st.sampled_from([0.0, 0.5, BELOW_ONE]))
@examples(100)
def test_equal_distributions_accept_every_token_they_can_draw(seed, vocab, uniform):  # F4
    p = random_distribution(seed, vocab, zeros=seed % vocab)
    for token in p.nonzero().flatten().tolist():
        assert accept_or_resample(p, p.clone(), token, uniform, uniform) == (True, token)


def _p_below_q_everywhere() -> tuple[torch.Tensor, torch.Tensor]:
    """p <= q everywhere, as float32 rounding of two equal distributions can leave it."""
    q = torch.tensor([0.5, 0.0, 0.3, 0.2, 0.0])
    p = q.clone()
    p[0], p[2] = torch.nextafter(p[0], torch.tensor(0.0)), torch.nextafter(p[2], torch.tensor(0.0))
    return p, q


def _falls_back_to_p(judge) -> bool:
    p, q = _p_below_q_everywhere()
    expected = {0.0: 0, 0.25: 0, 0.6: 2, 0.9: 3, BELOW_ONE: 3}
    return all(judge(p, q, 0, BELOW_ONE, u) == (False, token) for u, token in expected.items())


def test_an_empty_residual_falls_back_to_p():  # F4
    assert _falls_back_to_p(accept_or_resample)


def test_a_missing_fallback_is_noticed():  # F4, planted
    assert not _falls_back_to_p(residual_never_falls_back)


def test_a_rejected_token_is_never_returned_and_a_replacement_is_always_possible():
    p, q = random_distribution(3, 6, zeros=2), random_distribution(4, 6, zeros=2)
    for token in q.nonzero().flatten().tolist():
        for u_accept in (0.0, 0.4, BELOW_ONE):
            for u_resample in (0.0, 0.4, BELOW_ONE):
                accepted, returned = accept_or_resample(p, q, token, u_accept, u_resample)
                assert p[returned] > 0
                assert accepted == (returned == token)


def test_a_token_the_target_cannot_say_is_rejected_even_by_the_smallest_uniform():
    assert accept_or_resample(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), 0, 0.0, 0.5) == (False, 1)


def test_acceptance_is_strictly_below_the_ratio():
    p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    assert accept_or_resample(p, q, 0, 0.5 - 2**-53, 0.0) == (True, 0)
    assert accept_or_resample(p, q, 0, 0.5, 0.0) == (False, 1)


def test_an_argmax_draft_stands_for_one_hot_rows():
    draft = Draft([2, 0])
    assert draft.q_row(0, 4).tolist() == [0, 0, 1, 0]
    assert draft.q_row(1, 4).tolist() == [1, 0, 0, 0]
    assert draft.q_row(0, 4).dtype == torch.float32


@given(SEEDS, st.integers(0, 5), st.booleans())
@examples(150)
def test_all_verifiers_agree_at_temperature_zero(seed, drafted, with_rows):
    generator = torch.Generator().manual_seed(seed)
    # Whole numbers, so that there are ties; half of the drafted tokens are the target's own.
    logits = torch.randint(0, 4, (drafted + 1, 6), generator=generator).float()
    guess = torch.randint(0, 6, (drafted,), generator=generator)
    agree = torch.rand(drafted, generator=generator) < 0.7
    draft = Draft(torch.where(agree, logits[:drafted].argmax(-1), guess).tolist())
    if with_rows:
        draft.q = [draft.q_row(slot, 6) for slot in range(drafted)]
    verdicts = {
        verify(logits, draft, Sampling(), Uniforms(seed), round_index=3, emitted=5)
        for verify in (greedy_verifier, *VERIFIERS.values())
    }
    assert len(verdicts) == 1
    (verdict,) = verdicts
    assert draft.tokens[: verdict.accepted] == logits.argmax(-1).tolist()[: verdict.accepted]
    assert verdict.next == int(logits[verdict.accepted].argmax())


@pytest.mark.parametrize("verify", [greedy_verifier, rejection_verifier, match_verifier])
def test_a_verdict_s_kind_says_where_its_next_token_comes_from(verify):
    logits = torch.eye(3)[[1, 2, 0]] * 50
    for tokens, verdict in [
        ([], Verdict(0, 1, "plain")),
        ([1], Verdict(1, 2, "bonus")),
        ([1, 2], Verdict(2, 0, "bonus")),
        ([0, 2], Verdict(0, 1, "correction")),
        ([1, 1], Verdict(1, 2, "correction")),
    ]:
        rows = logits[: len(tokens) + 1]
        for sampling in (Sampling(), Sampling(0.5)):
            assert verify(rows, Draft(tokens), sampling, Uniforms(0), round_index=0, emitted=0) == verdict


def _drafters(seed: int):
    model = ModelDrafter(TableModel(random_table(6, seed + 1)), 6)
    reduced = ModelDrafter(TableModel(random_table(6, seed + 2, columns=3), head_ids=[0, 2, 5]), 6)
    return [
        model,
        reduced,
        PromptLookup(2, 1),
        FirstMatch(PromptLookup(3, 2), model),
        Scripted(lambda tokens, k: [sum(tokens) % 6] * (len(tokens) % (k + 1))),
    ]


@given(SEEDS, st.integers(0, 7), st.integers(0, 4), st.booleans())
@examples(60)
def test_match_verifier_says_what_plain_sampling_says_with_any_drafter_and_k(seed, k, which, confidence):
    sampling = Sampling(0.9, top_k=5, top_p=0.95)
    target = TableModel(random_table(6, seed))
    plain = autoregressive(target, [1, 2], sampling=sampling, max_new_tokens=25, seed=seed)
    fast = speculative(
        target,
        _drafters(seed)[which],
        [1, 2],
        lookahead=ConfidenceStop(k, 0.5) if confidence else k,
        verifier=match_verifier,
        sampling=sampling,
        max_new_tokens=25,
        seed=seed,
    )
    assert fast.tokens == plain.tokens
    assert fast.telemetry.rounds <= plain.telemetry.rounds


def test_rejection_verifier_accepts_at_least_as_often_as_matching():
    target = TableModel(random_table(6, 1))
    drafter = ModelDrafter(TableModel(random_table(6, 1) + 0.3 * random_table(6, 9)), 6)
    rates = {}
    for name, verifier in VERIFIERS.items():
        run = speculative(
            target, drafter, [0], verifier=verifier, sampling=Sampling(1.0), max_new_tokens=600, seed=4
        )
        rates[name] = run.telemetry.alpha[0]
    assert rates["rejection"] > rates["match"] + 0.1
