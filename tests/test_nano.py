"""The nano pair: loads, is small, agrees often but not always, and can be made again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch

from specdec_ref import checkpoints, paths
from specdec_ref.golden import corpus, nano, nano_files
from specdec_ref.golden.content import tensors_sha256
from specdec_ref.golden.generate import MANIFEST
from specdec_ref.golden.nano import DRAFT, TARGET
from specdec_ref.golden.nano_tokenizer import SPECIALS, VOCAB_SIZE, nano_tokenizer
from specdec_ref.golden.runs import Nano, load_nano

MODELS = paths.assets() / "models"


@pytest.fixture(scope="module")
def pair() -> Nano:
    return load_nano(MODELS)


def test_pair_loads_like_any_folder_and_fits_together(pair: Nano) -> None:
    target, draft = checkpoints.load(MODELS / TARGET), checkpoints.load(MODELS / DRAFT)
    checkpoints.check_same_tokenizer(target, draft)
    assert target.eos_ids == draft.eos_ids == (2,)
    assert target.bos_id == 1
    assert target.model.config == nano.TARGET_CONFIG
    assert draft.model.config == nano.DRAFT_CONFIG
    assert draft.specdec["target"] == TARGET
    assert draft.specdec["tokenizer_sha256"] == target.tokenizer_sha256
    assert {TARGET, DRAFT} <= set(checkpoints.names())


def test_pair_is_small_enough_to_commit() -> None:
    files = [file for name in (TARGET, DRAFT) for file in (MODELS / name).iterdir()]
    assert {file.name for file in files} >= {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "README.md",
    }
    assert sum(file.stat().st_size for file in files) <= 600_000


def test_reduced_head_lists_tokens_in_ascending_order(pair: Nano) -> None:
    ids = pair.draft.head_ids
    assert ids is not None and len(ids) == nano.HEAD_ROWS < VOCAB_SIZE
    assert bool((ids.diff() > 0).all())
    assert 2 in ids.tolist()  # it can end an answer


@pytest.mark.parametrize("name", [TARGET, DRAFT])
def test_weights_are_exact_in_float32_and_their_hash_is_in_the_manifest(name: str) -> None:
    weights = safetensors.torch.load_file(MODELS / name / "model.safetensors")
    dtypes = {tensor.dtype for key, tensor in weights.items() if key != "specdec.head_ids"}
    assert dtypes == {torch.bfloat16}
    manifest = json.loads((paths.assets() / "golden" / MANIFEST).read_text(encoding="utf-8"))
    assert manifest["models"][name]["sha256"] == tensors_sha256(weights)


def test_saving_and_loading_keep_every_weight(pair: Nano) -> None:
    for name, model in ((TARGET, pair.target), (DRAFT, pair.draft)):
        weights = safetensors.torch.load_file(MODELS / name / "model.safetensors")
        assert tensors_sha256(nano_files.stored(model)) == tensors_sha256(weights)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_is_neither_trivial_nor_hopeless(pair: Nano, temperature: float) -> None:
    telemetry = nano_files.acceptance(pair.target, pair.draft, pair.tokenizer, temperature, count=12)
    assert 0.4 < nano_files.mean_alpha(telemetry) < 0.85
    assert telemetry.tau > 1.5


def test_card_states_the_acceptance_that_is_measured(pair: Nano) -> None:
    telemetry = nano_files.acceptance(pair.target, pair.draft, pair.tokenizer, 0.0)
    for name in (TARGET, DRAFT):
        card = (MODELS / name / "README.md").read_text(encoding="utf-8")
        row = re.search(r"\| 0\.0 \| ([\d.]+) \| .* \| ([\d.]+) \|", card)
        assert row is not None
        assert float(row[1]) == pytest.approx(nano_files.mean_alpha(telemetry), abs=0.02)
        assert float(row[2]) == pytest.approx(telemetry.tau, abs=0.05)


def test_tokenizer_is_the_one_that_its_generator_makes(pair: Nano) -> None:
    again = nano_tokenizer()
    assert again.fingerprint == pair.tokenizer.fingerprint
    assert again.vocab_size == VOCAB_SIZE
    assert [again.special_tokens[special] for special in SPECIALS] == [0, 1, 2]
    assert {again.token_bytes(id) for id in range(3, 259)} == {bytes([byte]) for byte in range(256)}


def test_digits_stand_alone(pair: Nano) -> None:
    for id in range(3, VOCAB_SIZE):
        token = pair.tokenizer.token_bytes(id)
        assert len(token) == 1 or not any(byte in b"0123456789" for byte in token)


def test_chat_template_writes_what_training_saw(pair: Nano) -> None:
    for turns in corpus.conversations(5, 20):
        messages = [
            {"role": role, "content": content}
            for turn in turns
            for role, content in zip(("user", "assistant"), turn, strict=True)
        ]
        ids = pair.tokenizer.chat(messages, add_generation_prompt=False)
        assert pair.tokenizer.decode(ids) == corpus.chat_text(turns)


def test_corpus_is_the_same_every_time() -> None:
    texts = [corpus.chat_text(turns) for turns in corpus.conversations(3, 200)]
    assert texts == [corpus.chat_text(turns) for turns in corpus.conversations(3, 200)]
    assert len(set(texts)) > 150
    assert all(text.isascii() for text in texts)


def test_training_twice_gives_the_same_weights() -> None:
    hashes = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        made = nano.train_pair(target_steps=3, draft_steps=3)
        assert torch.get_num_threads() == threads
        hashes.append([tensors_sha256(nano_files.stored(model)) for model in (made.target, made.draft)])
    assert hashes[0] == hashes[1]
    assert hashes[0][0] != hashes[0][1]


@pytest.mark.slow
def test_training_gives_the_committed_weights(tmp_path: Path) -> None:
    nano_files.make_pair(MODELS, check=True)
