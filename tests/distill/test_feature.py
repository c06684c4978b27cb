"""Training a feature-level draft: unrolled as it will run, resumable, measured and loaded as what was trained."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch.nn import functional as F

from specdec_ref.checkpoints.feature import is_feature_draft, load_feature_draft, parse_feature_config
from specdec_ref.distill.batched import speculate
from specdec_ref.distill.batches import Batches
from specdec_ref.distill.config import SMOKE, SMOKE_FEATURE, load_config
from specdec_ref.distill.data import make_data
from specdec_ref.distill.evaluate import Job, evaluate, measure
from specdec_ref.distill.export import draft_from, export, trained_drafts
from specdec_ref.distill.feature_trunk import FeatureTrunk
from specdec_ref.distill.losses import Mix, head_loss_autograd
from specdec_ref.distill.shards import read_shards
from specdec_ref.distill.students import Students, Teacher, new_draft
from specdec_ref.distill.target import RANDOM, random_decoder
from specdec_ref.distill.texts import random_texts
from specdec_ref.distill.train import train
from specdec_ref.distill.unrolled_attention import unrolled_attention
from specdec_ref.errors import CheckpointError
from specdec_ref.feature_draft import FeatureConfig
from specdec_ref.kv_cache import KVCache
from tests.helpers.features import feature_config, random_feature_draft

TAPS = (1, 3)
STEPS = 4
CONFIG = feature_config(RANDOM, taps=TAPS, head_rows=200, context=256)


def _ids(batch: int, tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, RANDOM.vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def _streams(target, ids, taps=(0, *TAPS)):
    kept = {index: torch.empty(0) for index in taps}
    target.hidden_states(ids, taps=kept)
    return {index: value.flatten(0, 1) for index, value in kept.items()}


def test_unrolled_rows_are_what_drafting_computes():
    target, draft = random_decoder(RANDOM, seed=1).double(), random_feature_draft(CONFIG, 3)
    ids = _ids(2, 12)
    ours = FeatureTrunk(draft, 32, torch.float64).unroll(_streams(target, ids), 2, STEPS)
    for row in range(2):
        streams = _streams(target, ids[row : row + 1])
        feature = draft.feature(torch.cat([streams[index] for index in TAPS], -1))
        embedded = F.embedding(ids[row], target.embed)
        for t in range(1, 12 - STEPS - 1):
            cache = KVCache(CONFIG, 32, torch.float64)
            own = draft(feature[: t + 1], embedded[1 : t + 2], cache)[-1:]
            for step in range(STEPS):
                if step:
                    own = draft(own, embedded[t + step + 1 : t + step + 2], cache)
                expected = draft.norm(own)[0]
                # The trunk rotates with float32 tables, so the bound is float32's.
                torch.testing.assert_close(ours[step][row * 12 + t], expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_fused_attention_and_its_gradients_equal_the_plain_one(groups):
    generator = torch.Generator().manual_seed(0)

    def some(*shape):
        return torch.randn(shape, generator=generator, requires_grad=True)

    q = some(2, 4, 19, 8)
    keys, values = [some(2, groups, 19, 8) for _ in range(4)], [some(2, groups, 19, 8) for _ in range(4)]
    slope = torch.randn(q.shape, generator=generator)
    results = []
    for flash in (False, True):
        out = unrolled_attention(q, keys, values, flash=flash)
        results.append((out, *torch.autograd.grad((out * slope).sum(), [q, *keys, *values])))
    for plain, fused in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, atol=2e-6, rtol=1e-5)


def test_the_loss_compares_every_step_with_the_teacher_s_row_of_the_token_it_predicts():
    config = dataclasses.replace(SMOKE.train, unroll=3, unroll_decay=0.5)
    target = random_decoder(RANDOM, seed=1)
    order = torch.randperm(RANDOM.vocab_size, generator=torch.Generator().manual_seed(2))
    draft = new_draft(SMOKE_FEATURE.drafts[0], target.embed, order, 4)
    students = Students([draft], ["x"], order, 40, config)
    teacher = Teacher(target, order, 40, taps=students.taps, fuse=False)
    ids, weight = _ids(2, 10), torch.rand(20, generator=torch.Generator().manual_seed(1))
    lesson = teacher(ids)
    total, lines = students(ids, *lesson, weight, 0.7, 0.3)
    hiddens = FeatureTrunk(draft, 40, torch.float32).unroll(lesson[3], 2, 3)
    logits = target(ids)[..., order].flatten(0, 1)
    expected = torch.zeros(())
    for step, share in enumerate((4 / 7, 2 / 7, 1 / 7)):
        ahead = step + 1
        rows = torch.tensor([b * 10 + t for b in range(2) for t in range(10 - ahead)])
        # The mean is over all rows but the last `ahead`; those at the end of a text count as zero.
        loss = head_loss_autograd(
            hiddens[step][rows], draft.head.weight, logits[rows + ahead],
            logits[rows + ahead].logsumexp(-1), weight[rows + ahead], Mix(0.7, 0.3),
        )  # fmt: skip
        expected = expected + share * loss * len(rows) / (20 - ahead)
    torch.testing.assert_close(total, expected)
    assert students.lines == ["x", "x step 2", "x step 3"] and lines.shape == (3, 3)
    # Every parameter learns something.
    total.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in draft.parameters())


@pytest.mark.parametrize(("lookahead", "temperature"), [(1, 0.0), (4, 0.0), (4, 1.0)])
def test_batched_evaluation_takes_the_same_rounds_as_the_kits_loop(lookahead, temperature):
    target = random_decoder(RANDOM, seed=2, scale=1.5).double()
    ids = torch.randperm(RANDOM.vocab_size, generator=torch.Generator().manual_seed(1))[:200].sort().values
    draft = random_feature_draft(CONFIG, 5, head_ids=ids.tolist())
    prompts = random_texts(RANDOM.vocab_size, 0).prompts[:4]
    prompts[0] = dataclasses.replace(prompts[0], tokens=[1, 5])  # shorter than what is made anew each round
    job, config = Job("x", lookahead, temperature), dataclasses.replace(SMOKE.eval, new_tokens=16)
    ours = measure(target, draft, prompts, job, config, [2], 3, "batched")
    theirs = measure(target, draft, prompts, job, config, [2], 3, "reference")
    assert [[(r.drafted, r.accepted, r.next, r.kind) for r in trace] for trace in ours] == [
        [(r.drafted, r.accepted, r.next, r.kind) for r in trace] for trace in theirs
    ]


QUICK = dataclasses.replace(
    SMOKE_FEATURE,
    drafts=SMOKE_FEATURE.drafts[1:],
    data=dataclasses.replace(SMOKE.data, shards=2),
    train=dataclasses.replace(SMOKE.train, steps=40, unroll=3),
    eval=dataclasses.replace(SMOKE.eval, lookaheads=(4,), new_tokens=12),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run trained in two commands, the first of which was stopped at step 10."""
    torch.set_num_threads(1)  # sums in another order would not end at the same weights
    out = tmp_path_factory.mktemp("run")
    make_data(QUICK, out)
    train(QUICK, out, minutes=1e-9)
    assert torch.load(out / "checkpoint.pt", weights_only=True)["step"] == 10
    return out, train(QUICK, out)


def test_a_stopped_run_ends_where_an_uninterrupted_one_does(run, tmp_path):
    out, summary = run
    make_data(QUICK, tmp_path)
    whole = train(QUICK, tmp_path)
    assert whole["steps"] == summary["steps"] == 40
    assert whole["held_out"] == summary["held_out"]
    one, two = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (out, tmp_path))
    for name, weight in one["averages"][0].items():
        assert torch.equal(weight, two["averages"][0][name]), name


def test_training_helps_at_every_unrolled_step(run):
    out, summary = run
    saved = torch.load(out / "checkpoint.pt", weights_only=True)
    target = random_decoder(RANDOM, seed=0)
    untrained = new_draft(QUICK.drafts[0], target.embed, saved["order"], 0)
    students = Students([untrained], ["feature-small"], saved["order"], 200, QUICK.train)
    teacher = Teacher(target, saved["order"], 200, taps=students.taps, fuse=False)
    held = QUICK.train.held_out_rows
    tokens, roles = read_shards(out / "data")
    batches = Batches(tokens[-held:], roles[-held:], QUICK.train, 0)
    with torch.no_grad():
        [(ids, weight)] = batches.step(0)
        before = students(ids, *teacher(ids), weight, 1.0, 0.0)[1]
    after = list(summary["held_out"].values())
    assert len(after) == 3
    for line, figures in zip(before, after, strict=True):
        assert figures["alpha"] > float(line[1]) + 0.1


def test_the_exported_folder_is_the_draft_that_was_measured(run, tmp_path):
    out, _ = run
    report = evaluate(QUICK, out)
    [folder] = export(out, tmp_path)
    assert folder.name == "feature-32x1" and is_feature_draft(folder)
    loaded = load_feature_draft(folder)
    _, config, tensors = trained_drafts(out)["feature-small"]
    mine = draft_from(tensors, config)
    for name, tensor in mine.named_tensors().items():
        assert torch.equal(tensor, loaded.model.named_tensors()[name]), name
    assert report["drafts"][0]["kind"] == "feature"
    again = evaluate(QUICK, tmp_path / "other", drafts=[folder])
    for key in ("greedy", "t1", "c_params"):
        assert again["drafts"][0][key] == report["drafts"][0][key]
    card = (folder / "README.md").read_text()
    assert "after 1, 3 of its blocks" in card and "Unrolled over 3 drafted tokens" in card


def test_an_exported_head_keeps_each_row_with_its_token(run):
    out, _ = run
    saved = torch.load(out / "checkpoint.pt", weights_only=True)
    _, config, tensors = trained_drafts(out)["feature-small"]
    model = draft_from(tensors, config)
    trained = saved["averages"][0]["head.weight"]
    for row in (0, 5, 40):
        column = model.head_ids.tolist().index(int(saved["order"][row]))
        torch.testing.assert_close(model.head.weight[column], trained[row], atol=0, rtol=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "not 'specdec_feature_draft'"),
        ({"specdec": {"taps": [3, 1], "target_width": 48, "head_rows": 96}}, "ascending"),
        ({"specdec": {"taps": [1], "head_rows": 96}}, "target_width"),
        ({"specdec": {"taps": [1], "target_width": 48}}, "head_rows"),
    ],
)
def test_a_wrong_config_is_one_clear_error(run, tmp_path, change, message):
    [folder] = export(run[0], tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    assert isinstance(parse_feature_config(raw), FeatureConfig)
    with pytest.raises(CheckpointError, match=message):
        parse_feature_config({**raw, **change})


def test_a_feature_level_draft_is_not_taken_for_a_language_model(run, tmp_path):
    from specdec_ref import checkpoints

    [folder] = export(run[0], tmp_path)
    with pytest.raises(CheckpointError, match="no model of its own"):
        checkpoints.load(folder)


def test_feature_drafts_cost_as_much_as_the_plain_ones():
    target = 134_515_008
    plain, feature = load_config("h200").drafts, load_config("h200-feature").drafts
    for ours, theirs in zip(feature, plain, strict=True):
        shares = []
        for draft in (ours, theirs):
            model = draft.model(49_152, 576)
            shares.append((model.body_parameters + model.head_parameters) / target)
        assert abs(shares[0] - shares[1]) < 1e-4
        assert ours.head_rows == theirs.head_rows
        assert ours.width % 32 == ours.ff % 32 == 0


def test_body_parameters_are_those_of_the_module():
    draft = random_feature_draft(CONFIG, 0)
    count = sum(p.numel() for p in draft.parameters())
    assert CONFIG.body_parameters + CONFIG.head_parameters == count


def test_a_feature_draft_speculates_for_the_target_in_batches_without_changing_its_text():
    target = random_decoder(RANDOM, seed=2).double()
    draft = random_feature_draft(CONFIG, 5)
    prompts = [p.tokens for p in random_texts(RANDOM.vocab_size, 0).prompts[:3]]
    options = {"temperature": 0.0, "new_tokens": 12, "eos_ids": []}
    ours = speculate(target, draft, prompts, [0, 1, 2], lookahead=3, **options)
    alone = speculate(target, target, prompts, [0, 1, 2], lookahead=1, **options)
    spelled = [[[t for r in trace for t in r.emitted] for trace in traces] for traces in (ours, alone)]
    assert spelled[0] == spelled[1]
