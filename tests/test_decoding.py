"""Both loops: the same tokens at temperature 0, every way a text can end, errors, callbacks and books."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.acceptance import VERIFIERS
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.errors import CacheError, UsageError
from specdec_ref.lookahead import BreakEvenGate, ConfidenceStop, Costs
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from tests.helpers.lossless import miscounts
from tests.helpers.models import (
    Scripted,
    TableModel,
    Watched,
    perturbed,
    random_table,
    tiny_decoder,
    tiny_target,
    with_reduced_head,
)
from tests.helpers.properties import examples

SEEDS = st.integers(0, 2**31)
SAMPLED = Sampling(0.9, top_k=20, top_p=0.95)


def _drafter(kind: str, target: Runner, seed: int):
    model, vocab = target.model, target.vocab_size
    close = perturbed(model, seed)
    made = {
        "another model": lambda: ModelDrafter(Runner(tiny_decoder(seed + 1, layers=1)), vocab),
        "a close model": lambda: ModelDrafter(Runner(close), vocab),
        "the same model": lambda: ModelDrafter(Runner(model), vocab),
        "reduced head": lambda: ModelDrafter(Runner(with_reduced_head(close, range(1, vocab, 2))), vocab),
        "lookup": lambda: PromptLookup(3, 1),
        "lookup, then model": lambda: FirstMatch(PromptLookup(2, 2), ModelDrafter(Runner(close), vocab)),
    }
    return made[kind]()


DRAFTERS = [
    "another model",
    "a close model",
    "the same model",
    "reduced head",
    "lookup",
    "lookup, then model",
]
POLICIES = {
    "fixed": lambda k: k,
    "confidence": lambda k: ConfidenceStop(k, 0.3),
    "gate, given costs": lambda k: BreakEvenGate(
        ConfidenceStop(k, 0.0), Costs(0.2, {0: 1, 8: 3}), probe=2, rest=2
    ),
    "gate, timed": lambda k: BreakEvenGate(ConfidenceStop(k, 0.1), probe=2, rest=2),
}


@given(
    SEEDS, st.integers(0, 8), st.sampled_from(DRAFTERS), st.sampled_from(list(POLICIES)), st.integers(1, 40)
)
@examples(70)
def test_temperature_zero_equals_plain_decoding(seed, k, kind, policy, prompt_tokens):
    target = tiny_target(seed)
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, 31, (prompt_tokens,), generator=generator).tolist()
    watched = Watched(target)
    fast = speculative(
        watched, _drafter(kind, target, seed), prompt, lookahead=POLICIES[policy](k), max_new_tokens=32
    )
    assert not miscounts(fast, 32, [len(tokens) for _, tokens, _ in watched.calls])
    assert max(fast.telemetry.k_trace) <= k
    if kind == "the same model" and policy == "fixed":
        assert fast.telemetry.accepted == fast.telemetry.drafted
    plain = autoregressive(target, prompt, max_new_tokens=32)
    assert fast.tokens == plain.tokens
    assert fast.finish_reason == plain.finish_reason == "length"


def test_the_property_would_notice_a_loop_that_forgets_to_roll_back():
    target = tiny_target(5)
    plain = autoregressive(target, [1, 2, 3], max_new_tokens=20).tokens
    target.truncate = lambda length: None
    wrong = Scripted(lambda tokens, k: [(plain[len(tokens) - 3] + 1) % 31])
    assert speculative(target, wrong, [1, 2, 3], max_new_tokens=20).tokens != plain


def _perfect(texts: list[int], prompt_tokens: int) -> Scripted:
    """Drafts what the target is going to say."""
    return Scripted(lambda tokens, k: texts[len(tokens) - prompt_tokens :][:k])


@pytest.mark.parametrize("max_new_tokens", [0, 1, 2, 3, 5, 6, 11])
@pytest.mark.parametrize("k", [0, 1, 4, 50])
def test_exactly_max_new_tokens_also_when_k_exceeds_the_budget(k, max_new_tokens):  # F5
    target = TableModel(random_table(6, 1))
    plain = autoregressive(target, [0, 1], max_new_tokens=60).tokens
    target.passes = []
    result = speculative(target, _perfect(plain, 2), [0, 1], lookahead=k, max_new_tokens=max_new_tokens)
    assert result.tokens == plain[:max_new_tokens]
    assert result.finish_reason == "length"
    assert not miscounts(result, max_new_tokens, target.passes)
    assert len(target.passes) == -(-max_new_tokens // (min(k, max_new_tokens) + 1)) or k == 50
    if k == 50 and max_new_tokens > 1:
        assert [(r.k, r.reason) for r in result.trace] == [(max_new_tokens - 1, "budget")]


def _cycle(vocab: int = 6) -> TableModel:
    """Says 0, 1, 2, … in turn, for ever."""
    return TableModel(10 * torch.eye(vocab).roll(1, dims=1))


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("end", [1, 2, 3, 4, 5])
def test_end_of_text_inside_the_draft_ends_the_text_there(k, end):
    fast = speculative(
        _cycle(), _perfect([1, 2, 3, 4, 5, 0] * 3, 1), [0], lookahead=k, eos_ids=[end, 0], max_new_tokens=14
    )
    plain = autoregressive(_cycle(), [0], eos_ids=[end, 0], max_new_tokens=14)
    assert fast.tokens == plain.tokens == list(range(1, end + 1))
    assert fast.finish_reason == plain.finish_reason == "eos"
    # Nothing after the end is counted: neither drafted tokens nor the target's own.
    assert fast.telemetry.emitted == end == sum(len(r.emitted) for r in fast.trace)
    last = fast.trace[-1]
    cut = end % (k + 1) != 0  # the end is a drafted token, not the bonus
    assert (last.next is None, last.kind == "stop") == (cut, cut)
    assert last.drafted == list(range(1, end + 1))[-(end % (k + 1)) :] if cut else True
    assert fast.telemetry.drafted == fast.telemetry.accepted


@pytest.mark.parametrize("k", [0, 2, 5])
@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 7])
def test_a_stop_condition_in_the_middle_of_a_round_ends_the_text_there(k, stop_at):
    asked = []

    def stop_when(tokens):
        asked.append(list(tokens))
        return len(tokens) >= stop_at

    fast = speculative(_cycle(), _perfect([1, 2, 3, 4, 5, 0] * 3, 1), [0], lookahead=k, stop_when=stop_when)
    assert fast.tokens == [1, 2, 3, 4, 5, 0, 1][:stop_at]
    assert fast.finish_reason == "stop"
    assert asked == [fast.tokens[: i + 1] for i in range(stop_at)], (
        "asked once after each token, with all of them"
    )
    assert autoregressive(_cycle(), [0], stop_when=stop_when).tokens == fast.tokens


@pytest.mark.parametrize("k", [0, 1, 4, 9])
@pytest.mark.parametrize(("prompt_tokens", "room"), [(16, 0), (15, 1), (12, 4), (9, 7)])
def test_the_end_of_the_context_ends_the_text(k, prompt_tokens, room):
    target = Runner(tiny_decoder(4), context=16)
    prompt = list(range(prompt_tokens))
    plain = autoregressive(target, prompt, max_new_tokens=50)
    assert (len(plain.tokens), plain.finish_reason) == (room, "context")
    for drafter in (ModelDrafter(Runner(perturbed(target.model, 1), context=11), 31), PromptLookup(2, 1)):
        fast = speculative(target, drafter, prompt, lookahead=k, max_new_tokens=50)
        assert (fast.tokens, fast.finish_reason) == (plain.tokens, "context")
    exact = autoregressive(target, prompt, max_new_tokens=room)
    assert (exact.tokens, exact.finish_reason) == (plain.tokens, "length")


@pytest.mark.parametrize(
    "decode", [autoregressive, lambda target, prompt, **o: speculative(target, PromptLookup(), prompt, **o)]
)
@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "no tokens"),
        ([0, 31], {}, "token id 31 .* 31"),
        ([-1], {}, "token id -1"),
        ([0] * 17, {}, "17 tokens do not fit a context of 16"),
        ([0], {"max_new_tokens": -1}, "max_new_tokens"),
    ],
)
def test_impossible_requests_are_refused_before_the_model_runs(decode, prompt, options, message):
    def never(index):
        raise AssertionError("the model ran")

    target = Watched(Runner(tiny_decoder(4), context=16), before=never)
    with pytest.raises(UsageError, match=message):
        decode(target, prompt, **options)


def test_a_negative_lookahead_is_refused():
    with pytest.raises(UsageError, match="lookahead"):
        speculative(_cycle(), PromptLookup(), [0], lookahead=-1)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7)])
@pytest.mark.parametrize("k", [0, 3])
def test_tokens_are_streamed_in_order_as_they_are_decided(k, sampling):
    seen: list[int] = []
    passes_at_token = []
    target = TableModel(random_table(6, 2))

    def on_token(token):
        seen.append(token)
        passes_at_token.append(len(target.passes))

    drafter = ModelDrafter(TableModel(random_table(6, 2)), 6)
    result = speculative(
        target, drafter, [0], lookahead=k, sampling=sampling, max_new_tokens=20, on_token=on_token
    )
    assert seen == result.tokens
    rounds = [i for i, r in enumerate(result.trace, start=1) for _ in r.emitted]
    assert passes_at_token == rounds, "a token came later than the round that decided it"


@pytest.mark.parametrize("k", [0, 1, 3, 6])
@pytest.mark.parametrize("cancel_at", [1, 2, 3, 5])
def test_a_callback_that_returns_false_cancels_at_once(k, cancel_at):
    seen: list[int] = []

    def on_token(token):
        seen.append(token)
        return len(seen) < cancel_at

    drafter = _perfect([1, 2, 3, 4, 5, 0], 1)
    result = speculative(_cycle(), drafter, [0], lookahead=k, on_token=on_token, max_new_tokens=12)
    assert result.tokens == seen == [1, 2, 3, 4, 5][:cancel_at]
    assert result.finish_reason == "cancelled"
    assert result.telemetry.emitted == cancel_at
    seen.clear()
    assert autoregressive(_cycle(), [0], on_token=on_token).finish_reason == "cancelled"


def test_a_callback_that_returns_nothing_or_zero_does_not_cancel():
    for answer in (None, 0, "", True):
        result = autoregressive(_cycle(), [0], max_new_tokens=3, on_token=lambda token, a=answer: a)
        assert result.finish_reason == "length"


@pytest.mark.parametrize("fail_at", [0, 1, 4])
def test_an_error_inside_a_step_poisons_the_cache_and_a_new_generation_is_byte_identical(fail_at):  # F11
    runner = tiny_target(9)
    layer, healthy = runner.model.layers[1], runner.model.layers[1].forward
    drafter = ModelDrafter(Runner(perturbed(runner.model, 3)), 31)
    options = {"lookahead": 3, "sampling": SAMPLED, "max_new_tokens": 24, "seed": 11}
    first = speculative(runner, drafter, [1, 2, 3], **options)
    keys = runner.cache.keys.clone()

    def broken(*arguments):
        raise RuntimeError("out of memory")

    def before(index):
        if index == fail_at:
            layer.forward = broken

    with pytest.raises(RuntimeError, match="out of memory"):
        speculative(Watched(runner, before), drafter, [1, 2, 3], **options)
    layer.forward = healthy
    for use in (lambda: runner.forward([1]), lambda: runner.prefill([1]), lambda: runner.truncate(0)):
        with pytest.raises(CacheError, match="reset"):
            use()
    again = speculative(runner, drafter, [1, 2, 3], **options)
    assert replace(again, seconds={}) == replace(first, seconds={})
    assert torch.equal(runner.cache.keys, keys)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_one_seed_is_one_trace_and_another_seed_another(verifier):
    def run(seed):
        target = tiny_target(2)
        drafter = FirstMatch(PromptLookup(2, 1), ModelDrafter(Runner(perturbed(target.model, 3)), 31))
        options = {"verifier": VERIFIERS[verifier], "sampling": SAMPLED, "max_new_tokens": 30}
        return replace(speculative(target, drafter, [1, 2, 3], seed=seed, **options), seconds={})

    assert run(5) == run(5)
    assert len({tuple(run(seed).tokens) for seed in range(4)}) == 4
