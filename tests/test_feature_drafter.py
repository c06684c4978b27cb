"""A drafter that reads the target's features: right rows after every round, and the target's own text."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from specdec_ref.acceptance import match_verifier
from specdec_ref.checkpoints.feature import load_feature_draft
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.drafters import FeatureDrafter, FirstMatch, PromptLookup
from specdec_ref.drafters.base import Request
from specdec_ref.errors import CacheError, CheckpointError, UsageError
from specdec_ref.kv_cache import KVCache
from specdec_ref.lookahead import ConfidenceStop
from specdec_ref.pair import load_pair
from specdec_ref.rng import Uniforms
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from tests.helpers.features import TableWithFeatures, feature_config, random_feature_draft
from tests.helpers.lossless import Case, assert_lossless, contrary_tables, p_values, remember_distributions
from tests.helpers.models import tiny_decoder, tiny_target
from tests.helpers.properties import examples

SEEDS = st.integers(0, 2**31)
V = 31
TAPS = (0, 1, 2)


def _drafter(seed: int, target: Runner, kind: type[FeatureDrafter] = FeatureDrafter) -> FeatureDrafter:
    config = feature_config(target.model.config, taps=TAPS, head_rows=target.vocab_size - 3)
    return kind(random_feature_draft(config, seed, head_ids=range(2, target.vocab_size - 1)), target)


def _tokens(count: int, seed: int, vocab: int = V) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def _rows_from_scratch(drafter: FeatureDrafter, text: list[int]) -> tuple[KVCache, torch.Tensor]:
    """The draft's cache for a text, and its last output: one pass over all of it, without a runner on either side."""
    model, target = drafter.model, drafter.target.model
    taps = {index: torch.empty(0) for index in TAPS}
    target.hidden_states(torch.tensor(text[:-1]), taps=taps)
    feature = model.feature(torch.cat([taps[index] for index in TAPS], -1))
    cache = KVCache(model.config, len(text), model.dtype)
    own = model(feature, F.embedding(torch.tensor(text[1:]), target.embed), cache)
    return cache, own[-1]


def _assert_holds(drafter: FeatureDrafter, text: list[int]) -> None:
    """The rows that count are those of the text, in every layer."""
    cache, own = _rows_from_scratch(drafter, text)
    rows = len(text) - 1
    for mine, theirs in ((drafter.cache.keys, cache.keys), (drafter.cache.values, cache.values)):
        torch.testing.assert_close(mine[:, :, :rows], theirs[:, :, :rows], atol=1e-10, rtol=0)
    torch.testing.assert_close(drafter._own[0], own, atol=1e-10, rtol=0)


def _rounds(
    drafter: FeatureDrafter, seed: int, k: int, accepted: int, sampling: Sampling, prompt: int
) -> None:
    """Three rounds as the loop makes them, each of which accepts just so many tokens."""
    text = _tokens(prompt, seed)
    target = drafter.target
    target.reset()
    target.prefill(text[:-1])
    drafter.begin(text)
    for round_index in range(3):
        draft, _ = drafter.propose(Request(text, k, sampling, Uniforms(seed), round_index))
        _assert_holds(drafter, text)
        target.forward([text[-1], *draft.tokens])
        target.truncate(len(text) + accepted)
        wrong = (draft.tokens[accepted] + 1) % V if accepted < k else 5
        text = [*text, *draft.tokens[:accepted], wrong]


@given(SEEDS, st.integers(1, 5), st.integers(2, 20), st.sampled_from([Sampling(), Sampling(0.9)]))
@examples(3)
def test_after_every_accept_count_the_rows_are_those_of_the_text(seed, k, prompt, sampling):  # F9
    drafter = _drafter(seed, tiny_target(seed))
    for accepted in range(k + 1):
        _rounds(drafter, seed, k, accepted, sampling, prompt)


def test_keeping_the_rows_made_while_drafting_would_be_noticed():
    class Keeps(FeatureDrafter):
        def propose(self, request):
            draft = super().propose(request)
            self._rows = self.cache.length
            return draft

    with pytest.raises((AssertionError, CacheError)):
        _rounds(_drafter(1, tiny_target(1), Keeps), 1, 3, 2, Sampling(), 5)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_drafted_tokens_are_the_draft_s_own_greedy_course(k):
    drafter = _drafter(7, tiny_target(7))
    text = _tokens(9, 7)
    drafter.target.prefill(text[:-1])
    drafter.begin(text)
    draft, _ = drafter.propose(Request(text, k))
    # By hand: the draft's own output, and the embedding of its own token, at the next position.
    cache, own = _rows_from_scratch(drafter, text)
    long = KVCache(drafter.model.config, 64, drafter.model.dtype)
    rows = cache.length
    long.keys[:, :, :rows], long.values[:, :, :rows], long.length = (
        cache.keys[:, :, :rows],
        cache.values[:, :, :rows],
        rows,
    )
    expected = []
    for _ in range(k):
        column = int(drafter.model.logits(own[None])[0].argmax())
        expected.append(int(drafter.model.head_ids[column]))
        own = drafter.model(own[None], drafter.target.model.embed[expected[-1:]], long)[0]
    assert draft.tokens == expected
    assert drafter.passes == k - 1


@given(SEEDS, st.integers(1, 6), st.integers(1, 12))
@examples(10)
def test_greedy_text_is_the_target_s(seed, k, prompt):
    model = tiny_decoder(seed, vocab=7)
    text = _tokens(prompt, seed, 7)
    plain = autoregressive(Runner(model), text, max_new_tokens=40)
    target = Runner(model)
    result = speculative(target, _drafter(seed + 1, target), text, lookahead=k, max_new_tokens=40)
    assert result.tokens == plain.tokens
    assert result.telemetry.drafted > 0


def test_greedy_text_with_lookup_first_a_confidence_stop_and_a_full_context():
    accepted = 0
    for seed in range(6):
        model = tiny_decoder(seed, vocab=7, context=48)
        text = _tokens(5, seed, 7)
        plain = autoregressive(Runner(model), text, max_new_tokens=60)
        assert plain.finish_reason == "context"
        target = Runner(model)
        both = FirstMatch(PromptLookup(3, 3), _drafter(seed, target))
        for lookahead in (4, ConfidenceStop(4, 0.3)):
            result = speculative(target, both, text, lookahead=lookahead, max_new_tokens=60)
            assert result.tokens == plain.tokens
            accepted += result.telemetry.accepted
    assert accepted > 0


def test_a_prompt_of_one_token_has_no_feature_yet():
    target = tiny_target(3)
    drafter = _drafter(3, target)
    drafter.begin([4])
    draft, reason = drafter.propose(Request([4], 3))
    assert draft.tokens == [] and reason == "no feature"
    result = speculative(target, drafter, [4], max_new_tokens=6)
    assert result.trace[0].kind == "plain" and result.trace[1].drafted


def test_features_follow_the_cache_and_are_refused_beyond_it():
    target = tiny_target(2)
    with pytest.raises(CacheError, match="no features"):
        target.features(0, 1)
    target.keep_features((1, 2))
    target.prefill([1, 2, 3, 4])
    before = target.features(0, 2).clone()
    target.truncate(2)
    with pytest.raises(CacheError, match="no features of tokens 0 to 3"):
        target.features(0, 3)
    target.forward([9, 9])
    taps = {1: torch.empty(0), 2: torch.empty(0)}
    target.model.hidden_states(torch.tensor([1, 2, 9, 9]), taps=taps)
    torch.testing.assert_close(target.features(0, 4), torch.cat([taps[1], taps[2]], -1), atol=1e-10, rtol=0)
    assert torch.equal(target.features(0, 2), before)


def test_chunked_prefill_gives_the_same_features():
    model = tiny_decoder(5)
    whole, chunked = Runner(model), Runner(model, chunk=3)
    for runner in (whole, chunked):
        runner.keep_features(TAPS)
        runner.prefill(_tokens(11, 5))
    torch.testing.assert_close(whole.features(0, 11), chunked.features(0, 11), atol=1e-10, rtol=0)


def test_a_draft_for_another_target_is_refused():
    target = tiny_target(1)
    config = feature_config(target.model.config, taps=TAPS, head_rows=5)
    deep = dataclasses.replace(config, taps=(1, 9))
    with pytest.raises(UsageError, match="after 9 blocks"):
        FeatureDrafter(random_feature_draft(deep, 0), target)
    wide = dataclasses.replace(config, target_width=20)
    with pytest.raises(UsageError, match="width 20"):
        FeatureDrafter(random_feature_draft(wide, 0), target)
    FeatureDrafter(random_feature_draft(config, 0), target)
    with pytest.raises(UsageError, match="kept already"):
        FeatureDrafter(random_feature_draft(dataclasses.replace(config, taps=(1,)), 0), target)


# --- Losslessness -----------------------------------------------------------------------------------------------------

P, _ = contrary_tables()


@dataclasses.dataclass
class FeatureCase(Case):
    """A case whose drafter reads the features of its target."""

    kind: type[FeatureDrafter] = FeatureDrafter

    def make(self):
        target = TableWithFeatures(self.target, capacity=64)
        config = feature_config(target.model.config, taps=(0,), head_rows=3, layers=1, context=64)
        draft = random_feature_draft(config, 11, head_ids=[0, 1, 3], dtype=torch.float32)
        return target, self.kind(draft, target)


@pytest.mark.parametrize(
    ("lookahead", "sampling", "options"),
    [
        (4, Sampling(0.8, top_k=3, top_p=0.9, min_p=0.05), {}),
        (3, Sampling(1.0), {"verifier": match_verifier}),
    ],
)
def test_sampled_texts_are_distributed_as_the_target_s(lookahead, sampling, options, monkeypatch):
    remember_distributions(monkeypatch)
    assert_lossless(FeatureCase(P, None, lookahead, sampling, **options), runs=250)


def test_reporting_another_q_than_the_one_drawn_from_would_be_noticed():  # F1
    class Sharper(FeatureDrafter):
        def propose(self, request):
            draft, reason = super().propose(dataclasses.replace(request, sampling=Sampling()))
            draft.q = [torch.full((4,), 0.25) for _ in draft.tokens]
            return draft, reason

    texts, _ = FeatureCase(P, None, 2, kind=Sharper).run(250)
    assert min(p_values(texts, FeatureCase(P, None, 2)).values()) < 1e-9


# --- By name ----------------------------------------------------------------------------------------------------------


def _folder(path, **changes):
    """A feature-level draft for the nano target, as a folder."""
    target = load_pair("nano-target", "none")
    c = target.target.model.config
    config = feature_config(c, taps=(0, 1), head_rows=50, context=256)
    draft = random_feature_draft(config, 1, head_ids=range(10, 60), dtype=torch.float32)
    raw = {
        "model_type": "specdec_feature_draft",
        **{name: getattr(config, name) for name in SETTINGS},
        "specdec": {
            "taps": [0, 1],
            "target_width": c.hidden_size,
            "head_rows": 50,
            "tokenizer_sha256": target.tokenizer.fingerprint,
        },
    }
    raw["specdec"].update(changes)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(raw))
    save_file({n: t.contiguous() for n, t in draft.named_tensors().items()}, path / "model.safetensors")
    return path


SETTINGS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_theta",
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "lookup+"])
def test_a_pair_loads_a_feature_level_draft_and_decodes_the_same_text(tmp_path, prefix):
    pair = load_pair("nano-target", f"{prefix}{_folder(tmp_path / 'head')}")
    ids = pair.prompt_ids("hello", raw=True)
    plain = autoregressive(pair.target, ids, max_new_tokens=30)
    result = speculative(pair.target, pair.drafter, ids, max_new_tokens=30)
    assert result.tokens == plain.tokens and result.telemetry.drafted > 0


def test_a_draft_made_for_another_tokenizer_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="made for tokenizer 000"):
        load_pair("nano-target", _folder(tmp_path / "head", tokenizer_sha256="0" * 64))


def test_damaged_weights_are_one_clear_error(tmp_path):
    folder = _folder(tmp_path / "head")
    tensors = load_file(folder / "model.safetensors")
    for change, message in (
        ({"fuse.weight": None}, "'fuse.weight' is missing"),
        ({"fuse.weight": torch.zeros(3, 3)}, "expected"),
        ({"norm.weight": torch.full_like(tensors["norm.weight"], torch.nan)}, "NaN"),
        ({"specdec.head_ids": tensors["specdec.head_ids"].flip(0)}, "ascending"),
        ({"extra": torch.zeros(1)}, "not part of the model"),
    ):
        damaged = {name: t.contiguous() for name, t in (tensors | change).items() if t is not None}
        save_file(damaged, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            load_feature_draft(folder)
