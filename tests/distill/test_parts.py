"""The building blocks of distillation, each against a plain second implementation."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from specdec_ref.distill import openers
from specdec_ref.distill.batched import speculate, uniform_column
from specdec_ref.distill.batches import Batches
from specdec_ref.distill.blocks import Trunk
from specdec_ref.distill.config import SMOKE, load_config
from specdec_ref.distill.evaluate import Job, measure
from specdec_ref.distill.generate import ASSISTANT, DOCUMENT, Writer, plan_batch
from specdec_ref.distill.kernels import kd_rows, row_lse, sample_rows
from specdec_ref.distill.losses import HeadLoss, Mix, head_loss_autograd, mix_at
from specdec_ref.distill.target import RANDOM, random_decoder
from specdec_ref.distill.texts import prompts_folder, random_texts, read_prompts
from specdec_ref.errors import UsageError
from specdec_ref.model import Decoder
from specdec_ref.rng import Purpose, Uniforms

DRAFT = SMOKE.drafts[0].model(RANDOM.vocab_size)


def reduced_draft():
    model = random_decoder(DRAFT, seed=5)
    ids = (
        torch.randperm(RANDOM.vocab_size, generator=torch.Generator().manual_seed(1))[: DRAFT.head_rows]
        .sort()
        .values
    )
    model.head_ids.copy_(ids)
    model.head.weight.copy_(model.embed[ids])
    return model


def test_a_target_with_q_k_norms_is_refused():
    with pytest.raises(UsageError, match="q/k norms"):
        Trunk(Decoder(dataclasses.replace(RANDOM, qk_norm=True)), 8, torch.float32)


def test_trunk_equals_decoder_forward():
    model = random_decoder(RANDOM, seed=1).double()
    ids = torch.randint(0, RANDOM.vocab_size, (3, 17), generator=torch.Generator().manual_seed(0))
    ours = Trunk(model, 32, torch.float64)(ids)
    # Both rotate with float32 tables in the trunk, so the bound is float32's.
    torch.testing.assert_close(ours, model.hidden_states(ids).flatten(0, 1), atol=1e-5, rtol=1e-4)


def test_writer_logits_equal_decoder_forward():
    model = random_decoder(RANDOM, seed=1)
    ids = torch.randint(0, RANDOM.vocab_size, (4, 12), generator=torch.Generator().manual_seed(0))
    writer = Writer(model, 4, 12)
    steps = torch.stack([writer.logits(ids[:, t], t) for t in range(12)], dim=1)
    torch.testing.assert_close(steps, model(ids), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("mix", [Mix(), Mix(0.5, 1.0), Mix(0.0, 1.0)])
def test_head_loss_and_gradients_equal_autograd(mix):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(20, 16, generator=generator, requires_grad=True)
    weight = torch.randn(40, 16, generator=generator, requires_grad=True)
    teacher = 2 * torch.randn(20, 64, generator=generator)
    row_weight = torch.rand(20, generator=generator)
    lse, top = row_lse(teacher)
    figures: list[torch.Tensor] = []
    loss = HeadLoss.apply(hidden, weight, teacher, lse, top, row_weight, mix, figures)
    ours = torch.autograd.grad(loss, (hidden, weight))
    expected = head_loss_autograd(hidden, weight, teacher, lse, row_weight, mix)
    theirs = torch.autograd.grad(expected, (hidden, weight))
    torch.testing.assert_close(loss, expected)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_figures_of_a_perfect_student_are_perfect():
    teacher = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
    student = teacher.clone()
    rows = kd_rows(student, teacher, *row_lse(teacher), torch.ones(6), 1.0, 0.0)
    torch.testing.assert_close(rows, torch.tensor([[0.0, 1.0, 1.0]] * 6), atol=1e-6, rtol=0)
    assert student.abs().max() < 1e-6


def test_tokens_outside_the_head_are_never_a_match():
    teacher = torch.zeros(1, 8)
    teacher[0, 7] = 5.0  # the target's favourite is not among the four columns of the head
    rows = kd_rows(torch.zeros(1, 4), teacher, *row_lse(teacher), torch.ones(1), 1.0, 0.0)
    assert rows[0, 2] == 0 and rows[0, 1] < 0.1


def test_mix_starts_with_kl_and_ends_with_the_given_weights():
    assert mix_at(0.3, 0.6, 1.0, 0.5) == Mix(1.0, 0.0)
    assert mix_at(1.0, 0.6, 1.0, 0.5) == Mix(0.5, 1.0)
    assert mix_at(0.9, 1.0, 1.0, 0.5) == Mix(1.0, 0.0)


def test_sampler_follows_the_distribution_and_respects_min_p():
    logits = torch.randn(1, 30, generator=torch.Generator().manual_seed(0)).repeat(20_000, 1)
    ones, zeros = torch.ones(20_000), torch.zeros(20_000)
    drawn = sample_rows(logits, ones, zeros, 5)
    share = torch.bincount(drawn, minlength=30) / 20_000
    assert (share - logits[0].softmax(-1)).abs().sum() / 2 < 0.02
    assert (sample_rows(logits, zeros, zeros, 5) == logits[0].argmax()).all()
    p = logits[0].softmax(-1)
    kept = (p >= 0.5 * p.max()).nonzero().flatten()
    assert torch.isin(sample_rows(logits, ones, zeros + 0.5, 6), kept).all()


def test_shard_plan_is_a_function_of_the_seed():
    texts = random_texts(RANDOM.vocab_size, 0)
    one, two, other = (plan_batch(SMOKE.data, texts, seed) for seed in (4, 4, 5))
    assert all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(two).values(), strict=True))
    assert not torch.equal(one.prefix, other.prefix)


def test_written_chats_follow_the_template():
    texts = random_texts(RANDOM.vocab_size, 0)
    data = dataclasses.replace(SMOKE.data, rows=12, tokens=96)
    batch = plan_batch(data, texts, 7)
    tokens, roles = Writer(random_decoder(RANDOM, 0), 12, 96).write(batch, texts.end_of_turn, 7)
    again, _ = Writer(random_decoder(RANDOM, 0), 12, 96).write(batch, texts.end_of_turn, 7)
    assert torch.equal(tokens, again)
    given = batch.prefix >= 0
    assert torch.equal(tokens[given], batch.prefix[given])
    assert (roles[batch.document][:, 1:] == DOCUMENT).all()
    for row in (~batch.document).nonzero().flatten().tolist():
        line, speaks = tokens[row].tolist(), roles[row].tolist()
        answers = [i for i in range(1, 96) if speaks[i] == ASSISTANT and speaks[i - 1] != ASSISTANT]
        assert answers, "every chat reaches an answer"
        for start in answers:
            header = texts.to_assistant
            assert line[start - len(header) : start] == header
            assert line[start - len(header) - 1] == texts.end_of_turn


def test_uniform_columns_equal_the_kits_uniforms():
    seeds = [0, 1, 2**40 + 17]
    for turn, slot, purpose in ((0, 0, Purpose.TARGET), (7, 3, Purpose.DRAFT), (123, 8, Purpose.ACCEPT)):
        column = uniform_column(seeds, turn, slot, int(purpose))
        assert column.tolist() == [Uniforms(s)(turn, slot, purpose) for s in seeds]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("lookahead", [1, 4])
def test_batched_evaluation_takes_the_same_rounds_as_the_kits_loop(temperature, lookahead):
    target, draft = random_decoder(RANDOM, seed=2, scale=1.5), reduced_draft()
    prompts = random_texts(RANDOM.vocab_size, 0).prompts[:6]
    job = Job("x", lookahead, temperature)
    config = dataclasses.replace(SMOKE.eval, new_tokens=20)
    ours = measure(target.double(), draft.double(), prompts, job, config, [2], 3, "batched")
    theirs = measure(target, draft, prompts, job, config, [2], 3, "reference")
    assert [[(r.drafted, r.accepted, r.next, r.kind) for r in trace] for trace in ours] == [
        [(r.drafted, r.accepted, r.next, r.kind) for r in trace] for trace in theirs
    ]


def test_a_target_that_drafts_for_itself_is_always_right():
    target = random_decoder(RANDOM, seed=2)
    prompts = [p.tokens for p in random_texts(RANDOM.vocab_size, 0).prompts[:3]]
    rounds = speculate(
        target, target, prompts, [0, 1, 2], lookahead=3, temperature=0.0, new_tokens=12, eos_ids=[]
    )
    assert all(r.accepted == len(r.drafted) for trace in rounds for r in trace)
    assert all(sum(len(r.emitted) for r in trace) == 12 for trace in rounds)


def test_two_processes_split_the_rows_of_one():
    tokens = torch.arange(64 * 6, dtype=torch.int32).view(64, 6)
    roles = torch.ones(64, 6, dtype=torch.uint8)
    config = dataclasses.replace(SMOKE.train, rows=16, micro_rows=8)
    whole = Batches(tokens, roles, config, 3)
    parts = [Batches(tokens, roles, config, 3, process, 2) for process in (0, 1)]
    for step in range(9):
        joined = torch.cat([ids.flatten() for part in parts for ids, _ in part.step(step)])
        assert torch.equal(joined, torch.cat([ids.flatten() for ids, _ in whole.step(step)]))


def test_impossible_splits_are_refused():
    tokens, roles = torch.zeros(64, 6, dtype=torch.int32), torch.zeros(64, 6, dtype=torch.uint8)
    with pytest.raises(UsageError, match="cannot be split"):
        Batches(tokens, roles, dataclasses.replace(SMOKE.train, rows=16), 0, 0, 3)


def test_overrides_reach_every_level_and_refuse_unknown_fields():
    config = load_config("h200", '{"seed": 3, "train": {"minutes": 2.5, "chains": [[1, 1.0]]}}')
    assert (config.seed, config.train.minutes, config.train.chains) == (3, 2.5, ((1, 1.0),))
    with pytest.raises(UsageError, match=r"train\.minuets"):
        load_config("h200", {"train": {"minuets": 1}})


def test_h200_drafts_keep_within_their_budgets():
    target = 134_515_008
    limits = {"main": 0.060, "small": 0.025}
    for draft in load_config("h200").drafts:
        model = draft.model(49_152)
        assert (model.body_parameters + model.head_parameters) / target <= limits[draft.name]
        for width in (draft.width, draft.ff, draft.heads * draft.head_dim, draft.kv_heads * draft.head_dim):
            assert width % 32 == 0


def test_no_evaluation_prompt_begins_like_an_opener():
    starts = {" ".join(o.lower().split()[:6]) for o in openers.short_openers() + openers.long_openers()}
    for name, _, text in read_prompts(prompts_folder()):
        words = text.lower().split()
        assert " ".join(words[:6]) not in starts, f"{name} begins with an opener"
