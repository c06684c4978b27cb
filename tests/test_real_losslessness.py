"""Greedy speculative decoding equals greedy plain decoding on the real pair, token for token.

In float64 strictly. In float32 the same logits computed alone and inside a longer pass differ by rounding: a first
difference of two texts is legal only where the plain loop's two best logits are closer than the largest such difference
measured in the same test, and it is printed.

By default every prompt of the kit's set is decoded for 6 tokens with one (K, drafter) each, all combinations taking turns.
`python -m tests.full_sweep` decodes every prompt for 128 tokens with every K and both drafters; its last report is
`assets/results/losslessness.json`.
"""

from __future__ import annotations

import pytest
import torch

from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import Drafter, ModelDrafter, PromptLookup
from specdec_ref.prompts import Prompt, load_prompts
from specdec_ref.runner import Runner
from tests.helpers.greedy_agreement import (
    COMBINATIONS,
    LARGEST_ROUNDING,
    Agreement,
    Recorded,
    double,
    with_wrong_rollback,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]

TOKENS, TOKENS_FLOAT64 = 6, 14


@pytest.fixture(scope="module")
def vocabulary(smollm2) -> int:
    return min(smollm2.model.config.vocab_size, smollm2.tokenizer.vocab_size)


@pytest.fixture(scope="module")
def drafters(draft, vocabulary) -> dict[str, Drafter]:
    return {"draft": ModelDrafter(Runner(draft.model, 512), vocabulary), "lookup": PromptLookup()}


def _ids(smollm2, prompt: Prompt) -> list[int]:
    return smollm2.tokenizer.chat([{"role": "user", "content": prompt.turns[0]}])


def _compare(
    agreement: Agreement, target: Recorded, smollm2, prompt: Prompt, drafters, combinations, count: int
) -> None:
    ids = _ids(smollm2, prompt)
    options = {"eos_ids": smollm2.eos_ids, "max_new_tokens": count}
    plain = autoregressive(target, ids, **options)
    alone = target.rows
    for k, name in combinations:
        fast = speculative(target, drafters[name], ids, lookahead=k, **options)
        agreement.compare(
            f"{prompt.id}, K={k}, {name}", len(ids), (plain.tokens, alone), (fast.tokens, target.rows)
        )
        if fast.tokens == plain.tokens:
            assert fast.finish_reason == plain.finish_reason


def test_in_float64_the_texts_are_equal_without_exception(smollm2, drafters, vocabulary):
    model = double(smollm2.model)
    prompts = sorted(load_prompts(), key=lambda prompt: len(prompt.turns[0]))[:3]
    agreement = Agreement()
    target = Recorded(Runner(model, 512, vocab_size=vocabulary))
    for index, prompt in enumerate(prompts):
        _compare(agreement, target, smollm2, prompt, drafters, COMBINATIONS[index::3], TOKENS_FLOAT64)
    print(agreement)
    assert agreement.texts == len(COMBINATIONS)
    assert not agreement.differences, str(agreement)
    assert agreement.batch_shape_error < 1e-8


def test_in_float32_every_prompt_s_first_difference_is_within_rounding(smollm2, drafters, vocabulary):
    agreement, used = Agreement(), []
    target = Recorded(Runner(smollm2.model, 512, vocab_size=vocabulary))
    prompts = load_prompts()
    for index, prompt in enumerate(prompts):
        combination = COMBINATIONS[index % len(COMBINATIONS)]
        used.append(combination)
        _compare(agreement, target, smollm2, prompt, drafters, [combination], TOKENS)
    print(agreement)
    assert min(used.count(combination) for combination in COMBINATIONS) >= 4
    assert agreement.batch_shape_error < LARGEST_ROUNDING, str(agreement)
    assert not agreement.illegal(LARGEST_ROUNDING), str(agreement)


def test_the_comparison_rejects_a_planted_rollback_fault(smollm2, drafters, vocabulary):
    """A wrong cache gives wrong logits, and those must not count as a rounding error that excuses wrong tokens."""
    agreement = Agreement()
    prompt = min(load_prompts(), key=lambda prompt: len(prompt.turns[0]))
    target = Recorded(with_wrong_rollback(Runner(smollm2.model, 512, vocab_size=vocabulary)))
    _compare(agreement, target, smollm2, prompt, drafters, [(4, "draft")], 12)
    assert agreement.batch_shape_error > LARGEST_ROUNDING
    assert torch.isfinite(torch.tensor(agreement.batch_shape_error))
