"""Figures computed from finished texts are those of real runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import ModelDrafter
from specdec_ref.quantization.expected import Counts, expected_rounds
from specdec_ref.quantization.texts import Reference, acceptance_of, overlap, write_texts
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from specdec_ref.trace import Telemetry
from tests.helpers.models import perturbed, tiny_decoder, with_reduced_head
from tests.helpers.properties import examples

PROMPTS = [[1, 5, 9], [4], [7, 7, 2, 20, 11, 3], [30, 8]]
EOS = [6]


def pair(reduced: bool) -> tuple[torch.nn.Module, torch.nn.Module]:
    target = tiny_decoder(3)
    draft = perturbed(target, 4, 0.12)
    return target, with_reduced_head(draft, [i for i in range(31) if i % 5]) if reduced else draft


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_written_side_by_side_are_those_of_the_plain_loop(temperature: float) -> None:
    target = tiny_decoder(3)
    texts = write_texts(target, PROMPTS, temperature=temperature, new_tokens=24, eos_ids=EOS, seed=11)
    for i, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True)):
        plain = autoregressive(
            Runner(target, 64),
            prompt,
            sampling=Sampling(temperature),
            max_new_tokens=24,
            eos_ids=EOS,
            seed=11 + i,
        )
        assert text.tokens == plain.tokens
        p = target(torch.tensor(text.ids[:-1])).softmax(-1)[len(prompt) - 1 :]
        torch.testing.assert_close(
            p.gather(1, torch.tensor(text.tokens)[:, None])[:, 0].tolist(), text.p, atol=1e-5, rtol=0
        )
    assert {len(text.tokens) for text in texts} != {24}, "some text should end by itself"


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("k", [1, 4])
def test_greedy_rounds_are_exactly_those_of_a_real_run(reduced: bool, k: int) -> None:
    target, draft = pair(reduced)
    real, computed = Telemetry(), Counts()
    for text in write_texts(target, PROMPTS, temperature=0.0, new_tokens=24, eos_ids=EOS):
        drafter = ModelDrafter(Runner(draft, 64), 31)
        run = speculative(
            Runner(target, 64), drafter, text.prompt, lookahead=k, max_new_tokens=24, eos_ids=EOS
        )
        assert run.tokens == text.tokens
        real += run.telemetry
        computed += expected_rounds(acceptance_of(draft, text, greedy=True), k, 24)
    assert (computed.emitted, computed.passes) == (real.emitted, real.target_passes)
    assert computed.judged == real.per_position_judged
    assert computed.accepted == real.per_position_accepted
    assert computed.tau == real.tau and computed.alpha == real.alpha
    assert real.tau > 1.1


def test_sampled_rounds_are_those_of_real_runs_on_average() -> None:
    target, draft = pair(reduced=True)
    prompt, k, runs = [1, 5, 9], 3, 120
    texts = write_texts(target, [prompt] * runs, temperature=1.0, new_tokens=12, eos_ids=EOS, seed=1000)
    computed = sum((expected_rounds(acceptance_of(draft, t, greedy=False), k, 12) for t in texts), Counts())
    real = Telemetry()
    big, small = Runner(target, 32), ModelDrafter(Runner(draft, 32), 31)
    for seed in range(runs):
        real += speculative(
            big, small, prompt, lookahead=k, sampling=Sampling(1.0), max_new_tokens=12, eos_ids=EOS, seed=seed
        ).telemetry
    assert computed.tau == pytest.approx(real.tau, rel=0.07)
    assert computed.alpha == pytest.approx(real.alpha, abs=0.08)
    assert real.tau > 1.3


def test_alpha_of_the_first_slot_is_the_overlap_of_p_and_q() -> None:
    target, draft = pair(False)
    prompt = [1, 5, 9]
    texts = write_texts(target, [prompt] * 600, temperature=1.0, new_tokens=1, eos_ids=EOS)
    accept = [acceptance_of(draft, text, greedy=False)[0] for text in texts]
    ids = torch.tensor(prompt)
    assert sum(accept) / len(accept) == pytest.approx(float(overlap(target(ids), draft(ids))[-1]), abs=0.04)


@examples(100)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(1, 5), st.integers(0, 4))
def test_certain_acceptance_gives_whole_rounds(accept: list[bool], k: int, spare: int) -> None:
    budget = len(accept) + spare
    counts = expected_rounds([float(a) for a in accept], k, budget)
    at = passes = 0
    while at < len(accept):
        passes += 1
        slots = min(k, budget - 1 - at)
        run = 0
        while run < slots and at + run < len(accept) and accept[at + run]:
            run += 1
        at += run + 1
    assert counts.passes == passes and counts.emitted == len(accept)


def test_the_ends_of_the_scale() -> None:
    assert expected_rounds([1.0] * 20, 4, 20).tau == 5.0
    assert expected_rounds([0.0] * 20, 4, 20).tau == 1.0
    assert expected_rounds([0.5] * 4000, 4, 4000).tau == pytest.approx(
        1 + 0.5 + 0.25 + 0.125 + 0.0625, rel=1e-2
    )


def test_a_model_compared_with_itself_has_no_divergence_and_another_has() -> None:
    target = tiny_decoder(3)
    reference = Reference(target, [list(range(30)), [5, 4, 3, 2, 1]])
    perplexity, kl = reference.compare(target)
    assert kl == pytest.approx(0, abs=1e-9)
    by_hand = [target(text[:-1]).log_softmax(-1) for text in reference.texts]
    loss = [-p.gather(1, text[1:, None]) for p, text in zip(by_hand, reference.texts, strict=True)]
    assert perplexity == pytest.approx(float(torch.cat(loss).mean().exp()), rel=1e-5)
    assert (
        reference.compare(perturbed(target, 1, 0.3))[1]
        > 2 * reference.compare(perturbed(target, 1, 0.1))[1]
        > 0
    )
