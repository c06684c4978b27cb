"""Drafters: what they propose, from which q, and that the draft's cache follows the text whoever drafted (F7, F9)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.acceptance import Draft
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.drafters.base import Request
from specdec_ref.errors import UsageError
from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling, distribution, draw
from tests.helpers.caches import assert_holds
from tests.helpers.models import (
    Scripted,
    TableModel,
    perturbed,
    random_table,
    tiny_decoder,
    tiny_target,
    with_reduced_head,
)
from tests.helpers.properties import examples

SEEDS = st.integers(0, 2**31)
V = 31


def _tokens(count: int, seed: int, vocab: int = V) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


# --- Prompt lookup ----------------------------------------------------------------------------------------------------


def _naive_lookup(tokens: list[int], k: int, longest: int, shortest: int) -> list[int]:
    for n in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[-n:]:
                return tokens[start + n : start + n + k]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.integers(1, 5), max_size=6),
)
@examples(400)
def test_lookup_equals_a_backward_scan_at_every_length_of_the_text(tokens, k, shortest, more, steps):
    lookup = PromptLookup(shortest + more, shortest)
    lookup.begin(tokens[:1])
    length = 1
    for step in [0, *steps, 30]:  # the text grows by any number of tokens between two questions
        length = min(length + step, len(tokens))
        draft, reason = lookup.propose(Request(tokens[:length], k))
        assert draft.tokens == _naive_lookup(tokens[:length], k, shortest + more, shortest)
        assert draft.q is None
        assert len(draft.tokens) <= k
        assert (reason is None) == (len(draft.tokens) == k)


def test_lookup_prefers_the_longest_match_then_the_most_recent():
    lookup = PromptLookup(longest=3, shortest=1)
    lookup.begin([])
    #        3-gram 1 2 3 -> 7        newer 2-gram 2 3 -> 8     newest 1-gram 3 -> 9
    text = [1, 2, 3, 7, 0, 2, 3, 8, 0, 3, 9, 1, 2, 3]
    assert lookup.propose(Request(text, 1))[0].tokens == [7]
    assert PromptLookup(2, 1).propose(Request(text, 1))[0].tokens == [8]
    assert PromptLookup(1, 1).propose(Request(text, 1))[0].tokens == [9]
    assert PromptLookup(2, 2).propose(Request([1, 2, 5, 1, 2, 6, 1, 2], 3))[0].tokens == [6, 1, 2]


def test_lookup_forgets_the_old_text_when_it_begins_anew():
    lookup = PromptLookup(2, 2)
    lookup.begin([1, 2, 3])
    assert lookup.propose(Request([1, 2, 3, 1, 2], 2))[0].tokens == [3, 1]
    lookup.begin([9, 1, 2])
    assert lookup.propose(Request([9, 1, 2], 2)) == (Draft(), "no match")
    assert lookup.passes == 0


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (3, 0)])
def test_lookup_refuses_impossible_sizes(longest, shortest):
    with pytest.raises(UsageError, match="1 <= shortest <= longest"):
        PromptLookup(longest, shortest)


# --- The draft model's proposals --------------------------------------------------------------------------------------


def test_greedy_drafts_are_the_draft_model_s_own_greedy_text_with_one_hot_q():
    draft_model = tiny_target(2)
    drafter = ModelDrafter(Runner(draft_model.model), V)
    drafter.begin([1, 2, 3])
    draft, reason = drafter.propose(Request([1, 2, 3], 6))
    assert draft.tokens == autoregressive(draft_model, [1, 2, 3], max_new_tokens=6).tokens
    assert draft.q is None and reason is None
    assert drafter.passes == 6


def test_sampled_drafts_are_drawn_from_the_q_they_report_with_the_draft_s_uniforms():
    drafter = ModelDrafter(TableModel(random_table(6, 1)), 6)
    drafter.begin([4])
    sampling = Sampling(0.7, top_k=4, top_p=0.9)
    draft, _ = drafter.propose(Request([4], 5, sampling, Uniforms(3), round_index=7))
    before = [4, *draft.tokens[:-1]]
    for slot, (last, token, q) in enumerate(zip(before, draft.tokens, draft.q, strict=True)):
        assert torch.equal(q, distribution(random_table(6, 1)[last], sampling))
        assert token == draw(q, Uniforms(3)(7, slot, Purpose.DRAFT))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8)])
def test_a_reduced_head_proposes_its_own_tokens_and_q_is_zero_elsewhere(sampling):
    ids = [0, 3, 4, 17, 30]
    whole = tiny_decoder(4)
    drafter = ModelDrafter(Runner(with_reduced_head(whole, ids)), V)
    drafter.begin([1, 2])
    draft, _ = drafter.propose(Request([1, 2], 8, sampling))
    assert set(draft.tokens) <= set(ids) and len(draft.tokens) == 8
    logits = Runner(whole).forward([1, 2])[-1]
    allowed = torch.full((V,), -torch.inf, dtype=torch.float64)
    allowed[ids] = logits[ids]
    assert draft.tokens[0] == int(allowed.argmax()) or not sampling.greedy
    if draft.q is not None:
        assert all(q.shape == (V,) and set(q.nonzero().flatten().tolist()) <= set(ids) for q in draft.q)
        torch.testing.assert_close(draft.q[0], distribution(allowed, sampling))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize(
    ("draft_rows", "draft_ids"), [(40, None), (V, None), (40, [0, 5, 29, 33, 39]), (V, [7])]
)
def test_padded_and_partial_vocabularies_never_leave_the_target_s(draft_rows, draft_ids, sampling):  # F7
    """Target: 31 tokens in 36 rows. Draft: other padding, or a head with rows beyond the target's vocabulary."""
    target = Runner(tiny_decoder(4, vocab=36), vocab_size=V)
    drafter = ModelDrafter(Runner(tiny_decoder(5, vocab=draft_rows, head_ids=draft_ids)), V)
    drafter.begin([1, 2])
    draft, _ = drafter.propose(Request([1, 2], 20, sampling))
    assert max(draft.tokens) < V and len(draft.tokens) == 20
    for q in draft.q or []:
        assert q.shape == (V,)
        assert float(q.sum(dtype=torch.float64)) == pytest.approx(1, abs=1e-6)
    fast = speculative(target, drafter, [1, 2], max_new_tokens=30)
    assert fast.tokens == autoregressive(target, [1, 2], max_new_tokens=30).tokens
    assert max(fast.tokens) < V


def test_a_draft_ends_where_its_confidence_falls():
    table = torch.zeros(4, 4)
    table[0, 1], table[1, 2] = 5.0, 1.0  # sure of 1 after 0, unsure after 1
    drafter = ModelDrafter(TableModel(table), 4)
    for sampling in (Sampling(), Sampling(0.01)):
        asked = []
        drafter.begin([0])

        def confident(probability, asked=asked):
            asked.append(probability)
            return probability > 0.9

        draft, reason = drafter.propose(Request([0], 4, sampling, confident=confident))
        assert (draft.tokens, reason) == ([1], "confidence")
        assert asked == pytest.approx(table[:2].softmax(-1).max(-1).values.tolist())
        assert draft.q is None or len(draft.q) == 1


@pytest.mark.parametrize("prompt_tokens", [1, 7, 8, 9, 10, 11, 30])
def test_a_full_draft_context_shortens_drafts_and_harms_nothing(prompt_tokens):
    target = tiny_target(4)
    drafter = ModelDrafter(Runner(target.model, context=10), V)
    prompt = _tokens(prompt_tokens, 1)
    drafter.begin(prompt)
    draft, reason = drafter.propose(Request(prompt, 3))
    assert len(draft.tokens) == max(0, min(3, 10 - prompt_tokens + 1))
    assert reason == (None if len(draft.tokens) == 3 else "draft context")
    fast = speculative(target, drafter, prompt, lookahead=3, max_new_tokens=20)
    assert fast.tokens == autoregressive(target, prompt, max_new_tokens=20).tokens


# --- The draft's cache follows the text ----------------------------------------------------------------------------------


class _Checked(ModelDrafter):
    """Compares its cache with a recomputation, and its draft with a fresh drafter's, after every proposal."""

    checks = 0

    def propose(self, request):
        draft, reason = super().propose(request)
        fed = [*request.tokens, *draft.tokens[:-1]]
        assert_holds(self.runner.cache, self.runner.model, fed)
        fresh = ModelDrafter(Runner(self.runner.model), self.vocab_size)
        fresh.begin(request.tokens)
        assert fresh.propose(request)[0].tokens == draft.tokens
        self.checks += 1
        return draft, reason


def _checked(seed: int, kind: type[ModelDrafter] = _Checked) -> ModelDrafter:
    return kind(Runner(tiny_decoder(seed)), V)


@given(SEEDS, st.integers(1, 6), st.integers(1, 20), st.sampled_from([Sampling(), Sampling(0.9)]))
@examples(6)
def test_after_every_accept_count_the_draft_s_cache_holds_the_text(seed, k, prompt_tokens, sampling):  # F9
    drafter = _checked(seed)
    for accepted in range(k + 1):
        text = _tokens(prompt_tokens, seed)
        drafter.begin(text)
        for round_index in range(3):
            request = Request(text, k, sampling, Uniforms(seed), round_index)
            draft, _ = drafter.propose(request)
            wrong = (draft.tokens[accepted] + 1) % V if accepted < k else 5
            text = [*text, *draft.tokens[:accepted], wrong]
    assert drafter.checks == 3 * (k + 1)


@given(SEEDS, st.lists(st.integers(0, 40), min_size=1, max_size=4))
@examples(12)
def test_the_draft_s_cache_follows_rounds_that_others_drafted(seed, gaps):
    drafter = _checked(seed)
    text = _tokens(3, seed)
    drafter.begin(text)
    for index, gap in enumerate(gaps):
        if len(text) + gap > 110:
            break
        draft, _ = drafter.propose(Request(text, 4))
        # The others' text agrees with the stale draft for a while, then goes its own way.
        text = [*text, *draft.tokens[: gap % 5], *_tokens(gap + 1, seed + index)]
    drafter.propose(Request(text, 4))


def _after_a_coincidence(kind: type[ModelDrafter]) -> None:
    """The first drafted token is rejected, yet the text goes on with the very tokens that were drafted after it."""
    drafter = _checked(6, kind)
    text = [1, 2, 3]
    drafter.begin(text)
    stale = drafter.propose(Request(text, 5))[0].tokens
    text = [*text, (stale[0] + 1) % V, *stale[1:4], 8]
    draft, _ = drafter.propose(Request(text, 3))
    assert_holds(drafter.runner.cache, drafter.runner.model, [*text, *draft.tokens[:-1]])


def test_a_rejected_token_followed_by_equal_tokens_is_recomputed():
    _after_a_coincidence(_Checked)


def test_comparing_from_the_end_would_be_noticed():
    class Backwards(ModelDrafter):
        def _roll_back(self, tokens):
            common = min(len(self._held), len(tokens) - 1)
            while common and self._held[common - 1] != tokens[common - 1]:
                common -= 1
            self.runner.truncate(common)
            del self._held[common:]

    with pytest.raises(AssertionError):
        _after_a_coincidence(Backwards)


def test_the_draft_s_cache_is_right_throughout_a_generation_with_lookup_first():
    for seed in range(4):
        target = tiny_target(seed)
        first = FirstMatch(PromptLookup(3, 2), drafter := _Checked(Runner(perturbed(target.model, seed)), V))
        for sampling in (Sampling(), Sampling(0.3)):
            result = speculative(
                target, first, _tokens(6, seed), sampling=sampling, max_new_tokens=50, seed=1
            )
            assert len(result.tokens) == 50
        assert drafter.checks > 3


# --- First match ------------------------------------------------------------------------------------------------------


def test_the_first_drafter_with_an_idea_drafts():
    first = Scripted(lambda tokens, k: [7] if len(tokens) % 2 else [])
    second = Scripted(lambda tokens, k: [8, 9])
    both = FirstMatch(first, second)
    both.begin([0])
    assert both.propose(Request([0], 2))[0].tokens == [7]
    assert not second.requests, "the dearer drafter was asked though the cheaper one had an idea"
    assert both.propose(Request([0, 0], 2))[0].tokens == [8, 9]


def test_without_any_idea_the_last_reason_is_given_and_passes_are_summed():
    model = ModelDrafter(TableModel(random_table(4, 1), capacity=2), 4)
    both = FirstMatch(PromptLookup(), model)
    both.begin([0, 1])
    assert both.propose(Request([0, 1], 1))[1] is None
    assert both.propose(Request([0, 1, 2], 2)) == (Draft(), "draft context")
    assert both.passes == model.passes == 1
