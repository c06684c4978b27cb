"""The cache refuses what it cannot do, and after every round it holds just the text (F9, F10, F11)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.acceptance import match_verifier
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.errors import CacheError, UsageError
from specdec_ref.kv_cache import KVCache
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from tests.helpers.caches import assert_holds
from tests.helpers.models import Scripted, tiny_config, tiny_decoder, tiny_target
from tests.helpers.properties import examples

SEEDS = st.integers(0, 2**31)


@pytest.fixture
def cache() -> KVCache:
    return KVCache(tiny_config(), 8)


def test_it_is_allocated_once_with_keys_and_values_of_every_layer(cache):
    assert cache.keys.shape == cache.values.shape == (2, 2, 8, 8)
    assert cache.keys.dtype == torch.float32
    assert cache.nbytes == 2 * 2 * 2 * 8 * 8 * 4
    assert KVCache(tiny_config(), 8, torch.bfloat16).nbytes == cache.nbytes // 2
    keys, values, length = cache.layer(1)
    keys[:, 0], values[:, 0] = 3.0, 4.0
    assert length == 0
    assert (cache.keys[1, :, 0] == 3).all() and (cache.values[1, :, 0] == 4).all()
    assert not cache.keys[0].any()


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused_at_construction(capacity):
    with pytest.raises(CacheError, match="at least one"):
        KVCache(tiny_config(), capacity)
    with pytest.raises(UsageError, match="context"):
        Runner(tiny_decoder(0), context=capacity)


def test_a_runner_s_capacity_ends_where_the_model_s_positions_end():
    assert Runner(tiny_decoder(0, context=32), context=2048).capacity == 32
    assert Runner(tiny_decoder(0, context=32), context=9).capacity == 9


def test_overflow_is_refused_and_leaves_the_cache_usable(cache):
    cache.begin(6)
    cache.commit(6)
    with pytest.raises(CacheError, match="3 more tokens do not fit: 6 of 8"):
        cache.begin(3)
    assert cache.begin(2) == 6
    cache.commit(2)
    assert cache.length == 8


@pytest.mark.parametrize("length", [-1, 6, 100])
def test_rolling_forward_or_below_zero_is_refused(cache, length):
    cache.begin(5)
    cache.commit(5)
    with pytest.raises(CacheError, match=f"cannot roll back to {length}"):
        cache.truncate(length)
    assert cache.length == 5


def test_rollback_moves_and_clears_nothing(cache):
    cache.keys.normal_()
    cache.begin(5)
    cache.commit(5)
    keys, address = cache.keys.clone(), cache.keys.data_ptr()
    for length in (5, 3, 0):
        cache.truncate(length)
        assert cache.length == length
    assert cache.keys.data_ptr() == address
    assert torch.equal(cache.keys, keys)


def test_a_pass_that_did_not_finish_poisons_until_reset(cache):
    cache.begin(2)
    for use in (lambda: cache.begin(1), lambda: cache.truncate(0)):
        with pytest.raises(CacheError, match="reset"):
            use()
    cache.reset()
    assert cache.begin(1) == 0


def test_reset_restores_the_first_state_byte_for_byte():
    runner = tiny_target(1)
    first = runner.cache.keys.clone(), runner.cache.values.clone()
    logits = runner.forward([1, 2, 3])
    with pytest.raises(IndexError):
        runner.forward([10_000])
    runner.reset()
    assert runner.length == 0
    assert torch.equal(runner.cache.keys, first[0]) and torch.equal(runner.cache.values, first[1])
    assert torch.equal(runner.forward([1, 2, 3]), logits)


@given(SEEDS, st.lists(st.integers(1, 9), min_size=1, max_size=6))
@examples(25)
def test_any_split_into_passes_fills_the_cache_like_one_pass(seed, parts):
    runner = Runner(tiny_decoder(seed), chunk=4)
    tokens = torch.randint(0, 31, (sum(parts),), generator=torch.Generator().manual_seed(seed)).tolist()
    fed = 0
    for index, part in enumerate(parts):
        (runner.prefill if index % 2 else runner.forward)(tokens[fed : fed + part])
        fed += part
    assert_holds(runner.cache, runner.model, tokens)


def test_logits_with_a_cache_are_those_without():
    runner = tiny_target(3)
    tokens = torch.randint(0, 31, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        whole = runner.model(tokens)
    for row, expected in zip(tokens.tolist(), whole, strict=True):
        runner.reset()
        parts = [runner.forward(row[:7]), *(runner.forward([t]) for t in row[7:11]), runner.forward(row[11:])]
        torch.testing.assert_close(torch.cat(parts), expected, atol=1e-10, rtol=0)


@given(SEEDS, st.integers(0, 6), st.integers(1, 20), st.sampled_from([Sampling(), Sampling(0.8)]))
@examples(12)
def test_after_every_accept_count_the_cache_holds_the_text_but_its_last_token(
    seed, k, prompt_tokens, sampling
):
    """F9 for the target: rounds that accept 0, 1, …, K drafted tokens, in a random order, checked after each."""
    runner = tiny_target(seed)
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, 31, (prompt_tokens,), generator=generator).tolist()
    accepts = torch.randperm(k + 1, generator=generator).tolist()
    budget = sum(accepts) + len(accepts)
    # What the matching verifier will say is what plain decoding says, so drafts can be right for just n tokens.
    options = {"sampling": sampling, "max_new_tokens": budget + k, "seed": 1}
    plain = autoregressive(runner, prompt, **options).tokens
    checked = []

    def script(tokens, room):
        assert_holds(runner.cache, runner.model, tokens[:-1])
        index = len(checked)
        checked.append(index)
        done = len(tokens) - prompt_tokens
        if index >= len(accepts):
            return []
        coming = plain[done : done + k]
        return [t if slot < accepts[index] else (t + 1) % 31 for slot, t in enumerate(coming)]

    fast = speculative(runner, Scripted(script), prompt, lookahead=k, verifier=match_verifier, **options)
    assert [r.accepted for r in fast.trace[: len(accepts)]] == accepts
    assert fast.tokens == plain
    assert_holds(runner.cache, runner.model, (prompt + plain)[:-1])


@pytest.mark.parametrize(
    "held", [[1, 2, 3, 5, 9], [1, 2, 3, 9], [1, 2, 4, 3, 9]], ids=["stale", "missing", "swapped"]
)
def test_contents_that_are_not_the_text_s_would_be_noticed(held):
    runner = tiny_target(7)
    runner.forward(held)
    with pytest.raises(AssertionError):
        assert_holds(runner.cache, runner.model, [1, 2, 3, 4, 9])


def test_a_rollback_of_the_first_layer_alone_would_be_noticed():  # F10
    runner = tiny_target(7)
    runner.forward([1, 2, 3, 4, 5])
    stale = runner.cache.keys.clone()
    runner.truncate(3)
    runner.forward([9])
    runner.cache.keys[1] = stale[1]
    with pytest.raises(AssertionError):
        assert_holds(runner.cache, runner.model, [1, 2, 3, 9])
