"""Philox against its authors' vectors, and what the names of uniforms promise."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref import acceptance, decoding
from specdec_ref.acceptance import VERIFIERS
from specdec_ref.drafters import FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.lookahead import BreakEvenGate, ConfidenceStop, Costs, FixedLookahead
from specdec_ref.rng import Purpose, Uniforms, philox4x32
from specdec_ref.sampling import Sampling
from tests.helpers.models import TableModel, random_table
from tests.helpers.properties import examples

# philox4x32, 10 rounds, from kat_vectors of the Random123 distribution: counter, key, output.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_known_answers(counter, key, expected):
    assert philox4x32(counter, key) == expected


@given(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6))
@examples(50)
def test_philox_agrees_with_numpy_s_multiplication_in_uint64(words):
    counter, key = np.array(words[:4], dtype=np.uint64), np.array(words[4:], dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = np.array(
            [
                (b >> np.uint64(32)) ^ counter[1] ^ key[0],
                b & low,
                (a >> np.uint64(32)) ^ counter[3] ^ key[1],
                a & low,
            ]
        )
        key = (key + np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)) & low
    assert philox4x32(tuple(words[:4]), tuple(words[4:])) == tuple(int(word) for word in counter)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 64), st.sampled_from(Purpose))
@examples(300)
def test_uniforms_lie_in_the_half_open_unit_interval(seed, round_index, slot, purpose):
    uniform = Uniforms(seed)(round_index, slot, purpose)
    assert 0 <= uniform <= 1 - 2**-53
    assert uniform * 2**53 == int(uniform * 2**53), "a uniform has 53 bits, so it is exact in float64"


@pytest.mark.parametrize(("word", "extreme"), [(0, 0.0), (0xFFFFFFFF, 1 - 2**-53)])
def test_extreme_random_bits_give_the_ends_of_the_interval(monkeypatch, word, extreme):
    monkeypatch.setattr("specdec_ref.rng.philox4x32", lambda counter, key: (word,) * 4)
    assert Uniforms(7)(0, 0, Purpose.TARGET) == extreme


def test_each_part_of_a_name_and_the_whole_seed_matter():
    seeds = [0, 1, 2**32, 2**63, 2**64 - 1]
    drawn = [Uniforms(s)(r, i, p) for s in seeds for r in range(4) for i in range(4) for p in Purpose]
    assert len(set(drawn)) == len(drawn)
    assert Uniforms(5)(3, 2, Purpose.ACCEPT) == Uniforms(5)(3, 2, Purpose.ACCEPT)


def test_uniforms_are_spread_evenly_and_neighbours_are_unrelated():
    uniforms = Uniforms(2024)
    grid = np.array([[[uniforms(r, i, p) for p in Purpose] for i in range(5)] for r in range(800)])
    counts = np.histogram(grid, bins=20, range=(0, 1))[0]
    expected = grid.size / 20
    assert np.sum((counts - expected) ** 2) / expected < 70  # chi-square, 19 degrees of freedom: p = 1e-7
    for axis in range(3):
        a, b = np.split(np.moveaxis(grid, axis, 0)[: grid.shape[axis] // 2 * 2], 2)
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(correlation) < 5.5 / np.sqrt(a.size)


class _Spy(Uniforms):
    asked: Counter

    def __call__(self, round_index, slot, purpose):
        self.asked[round_index, slot, purpose] += 1
        return super().__call__(round_index, slot, purpose)


POLICIES = {
    "one": lambda: FixedLookahead(1),
    "five": lambda: FixedLookahead(5),
    "confidence": lambda: ConfidenceStop(6, 0.5),
    "gate": lambda: BreakEvenGate(FixedLookahead(4), Costs(c=0.6, v={0: 1.0, 8: 3.0}), probe=2, rest=3),
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_no_uniform_is_used_twice_in_a_generation(monkeypatch, verifier, policy):
    target = TableModel(random_table(6, seed=1))
    model_draft = ModelDrafter(TableModel(random_table(6, seed=2)), 6)
    second_draft = ModelDrafter(TableModel(random_table(6, seed=3)), 6)
    for drafter in (
        model_draft,
        FirstMatch(PromptLookup(), model_draft),
        FirstMatch(model_draft, second_draft),
    ):
        for seed in range(5):
            spy = type("Spy", (_Spy,), {"asked": Counter()})
            monkeypatch.setattr(decoding, "Uniforms", spy)
            result = decoding.speculative(
                target,
                drafter,
                [0, 1, 2, 0, 1],
                lookahead=POLICIES[policy](),
                verifier=VERIFIERS[verifier],
                sampling=Sampling(temperature=0.9),
                max_new_tokens=40,
                seed=seed,
            )
            assert len(result.tokens) == 40
            assert spy.asked, "the loop asked for its uniforms elsewhere"
            assert max(spy.asked.values()) == 1, [name for name, times in spy.asked.items() if times > 1]


def test_a_uniform_used_twice_would_be_noticed(monkeypatch):
    def careless(logits, draft, sampling, uniforms, *, round_index, emitted):
        return acceptance.rejection_verifier(
            logits, draft, sampling, uniforms, round_index=0, emitted=emitted
        )

    spy = type("Spy", (_Spy,), {"asked": Counter()})
    monkeypatch.setattr(decoding, "Uniforms", spy)
    drafter = ModelDrafter(TableModel(random_table(6, seed=2)), 6)
    decoding.speculative(
        TableModel(random_table(6, seed=1)),
        drafter,
        [0],
        verifier=careless,
        sampling=Sampling(1.0),
        max_new_tokens=9,
    )
    assert max(spy.asked.values()) > 1


def test_plain_decoding_names_one_uniform_per_token(monkeypatch):
    spy = type("Spy", (_Spy,), {"asked": Counter()})
    monkeypatch.setattr(decoding, "Uniforms", spy)
    target = TableModel(random_table(6, seed=1))
    decoding.autoregressive(target, [0], sampling=Sampling(1.0), max_new_tokens=12)
    assert spy.asked == Counter({(i, 0, Purpose.TARGET): 1 for i in range(12)})
