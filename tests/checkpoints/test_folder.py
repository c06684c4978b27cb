"""Local folders: whole, sharded, in other types; every kind of damage is one clear error that names the culprit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec_ref.checkpoints import load
from specdec_ref.checkpoints.folder import INDEX, SINGLE, FolderTensors
from specdec_ref.errors import CheckpointError, UsageError
from tests.helpers import hf
from tests.helpers.tiny_tokenizer import tiny_tokenizer, tokens

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny untied Llama in one file."""
    hf.tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The same in several files."""
    hf.tiny("llama").save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    return tmp_path / "sharded"


def error_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message and str(folder) in message
    return message


def change(folder: Path, edit: Any) -> None:
    """Rewrite the weights after `edit(tensors)`."""
    tensors = load_file(folder / SINGLE)
    edit(tensors)
    save_file(tensors, folder / SINGLE)


def change_config(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def logits(folder: Path) -> Tensor:
    with torch.inference_mode():
        return load(folder).model(torch.arange(20))


def test_shards_give_the_same_model_as_one_file(folder: Path, sharded: Path) -> None:
    assert torch.equal(logits(folder), logits(sharded))


def test_what_a_loaded_model_says_of_itself(folder: Path) -> None:
    loaded = load(folder)
    assert (loaded.name, loaded.source, loaded.folder) == ("model", f"local folder {folder}", folder)
    assert (loaded.eos_ids, loaded.bos_id, loaded.tokenizer, loaded.tokenizer_sha256) == ((2,), 1, None, None)
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    assert load(str(folder)).folder == folder


def test_several_end_tokens_and_where_they_are_found(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 2, 7]}')
    assert load(folder).eos_ids == (7, 2), "generation_config.json wins"
    (folder / "generation_config.json").unlink()
    change_config(folder, eos_token_id=[5, 6], bos_token_id=None)
    assert (load(folder).eos_ids, load(folder).bos_id) == ((5, 6), None)


def test_a_tokenizer_fills_in_end_and_beginning(tmp_path: Path) -> None:
    hf.tiny("llama", vocab_size=len(tokens()) + 5, eos_token_id=None, bos_token_id=None).save_pretrained(
        tmp_path
    )
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    tiny_tokenizer().save(tmp_path)
    loaded = load(tmp_path)
    assert (loaded.eos_ids, loaded.bos_id) == ((2,), 1)
    assert loaded.tokenizer is not None and loaded.tokenizer_sha256 == loaded.tokenizer.fingerprint


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(folder: Path) -> None:
    tiny_tokenizer().save(folder)
    assert f"the tokenizer has {len(tokens())} tokens, the model only 61" in error_of(folder)


def test_tensors_are_read_one_at_a_time(folder: Path) -> None:
    tensors = FolderTensors(folder)
    assert Q in tensors and "nothing" not in tensors and len(tensors) == len(set(tensors)) == 30
    assert tensors.read == set()
    assert tensors[Q].shape == (32, 32)
    assert tensors.read == {Q}
    with pytest.raises(KeyError):
        tensors["nothing"]


def test_int8_tensors_with_scales_are_dequantised(folder: Path) -> None:
    name = "model.embed_tokens.weight"
    exact = load_file(folder / SINGLE)[name]
    scale = (exact.abs().amax(dim=1, keepdim=True) / 127).half()
    rounded = (exact / scale.float()).round().clamp(-127, 127).to(torch.int8)
    change(folder, lambda tensors: tensors.update({name: rounded, f"{name}_scale": scale}))
    assert torch.equal(load(folder).model.embed.data, rounded.float() * scale.float())
    change(folder, lambda tensors: tensors.update({f"{name}_scale": torch.ones(7, 1)}))
    assert "does not fit the shape of 'model.embed_tokens.weight'" in error_of(folder)
    change(folder, lambda tensors: tensors.pop(f"{name}_scale"))
    assert "int8 tensor 'model.embed_tokens.weight' has no" in error_of(folder)


def with_head_ids(folder: Path, ids: list[int]) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors["specdec.head_ids"] = torch.tensor(ids, dtype=torch.int32)
        tensors["lm_head.weight"] = tensors["lm_head.weight"][: len(ids)].clone()

    change(folder, edit)
    change_config(folder, specdec={"head_rows": len(ids)})


def test_a_reduced_head(folder: Path) -> None:
    full = logits(folder)
    with_head_ids(folder, [3, 10, 60])
    loaded = load(folder)
    assert loaded.specdec == {"head_rows": 3}
    assert loaded.model.head_ids is not None and loaded.model.head_ids.tolist() == [3, 10, 60]
    torch.testing.assert_close(logits(folder), full[:, :3])


@pytest.mark.parametrize("ids", [[3, 3, 4], [4, 3, 5], [3, 4, 61], [-1, 3, 4]])
def test_head_ids_must_ascend_inside_the_vocabulary(folder: Path, ids: list[int]) -> None:
    with_head_ids(folder, ids)
    assert "specdec.head_ids must be ascending token ids of the vocabulary" in error_of(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1000, -1])
def test_a_truncated_file(folder: Path, keep: int) -> None:
    path = folder / SINGLE
    path.write_bytes(path.read_bytes()[:keep])
    assert error_of(folder).startswith(f"{path}: truncated or damaged: ")


def test_a_file_of_something_else(folder: Path) -> None:
    (folder / SINGLE).write_bytes(b"<!DOCTYPE html><html>404</html>" * 100)
    assert "truncated or damaged" in error_of(folder)


def test_a_truncated_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    assert error_of(sharded).startswith(f"{shard}: truncated or damaged: ")


def test_a_missing_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    assert f"shard {shard.name!r} is missing (take a complete copy of the model)" in error_of(sharded)


def test_a_damaged_index(sharded: Path) -> None:
    index = sharded / INDEX
    whole = json.loads(index.read_text())
    index.write_text('{"weight_map"')
    assert "cannot be read as JSON" in error_of(sharded)
    index.write_text("{}")
    assert "holds no weight_map" in error_of(sharded)
    other = next(file for file in whole["weight_map"].values() if file != whole["weight_map"][Q])
    index.write_text(json.dumps({"weight_map": {**whole["weight_map"], Q: other}}))
    assert f"tensor {Q!r} is missing (the index names it there" in error_of(sharded)


def test_a_missing_tensor(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop(Q))
    assert f"tensor {Q!r} is missing" in error_of(folder)


def test_a_tensor_of_another_shape(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({Q: torch.zeros(8, 32)}))
    assert f"tensor {Q!r} has shape (8, 32), expected (32, 32)" in error_of(folder)


def test_a_config_of_another_size(folder: Path) -> None:
    change_config(folder, vocab_size=60)
    assert "tensor 'model.embed_tokens.weight' has shape (61, 32), expected (60, 32)" in error_of(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers(folder: Path, value: float) -> None:
    change(folder, lambda tensors: tensors[Q].__setitem__((3, 4), value))
    assert f"tensor {Q!r} holds NaN or infinity" in error_of(folder)


def test_whole_numbers_where_weights_belong(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({Q: torch.zeros(32, 32, dtype=torch.int32)}))
    assert f"tensor {Q!r} has unsupported type torch.int32" in error_of(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.3.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_norm.weight",
    ],
)
def test_tensors_that_the_config_does_not_know(folder: Path, name: str) -> None:
    """A bias, layer or norm left out silently would give plausible, wrong answers."""
    change(folder, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert f"tensor {name!r} is not part of the model that config.json describes" in error_of(folder)


def test_stored_rotary_frequencies_are_ignored(folder: Path) -> None:
    before = logits(folder)
    change(
        folder,
        lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}),
    )
    assert torch.equal(logits(folder), before)


def test_a_tied_model_with_a_head_in_the_file(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=True)
    assert "ties the output head to the embedding, but the file holds a different head" in error_of(folder)
    change(
        folder,
        lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}),
    )
    load(folder)


def test_an_untied_model_without_a_head(folder: Path) -> None:
    change(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert "tensor 'lm_head.weight' is missing" in error_of(folder)


def test_a_folder_without_weights_or_config(folder: Path) -> None:
    (folder / SINGLE).unlink()
    assert f"there is no {SINGLE} (take a complete copy of the model)" in error_of(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "only pickled weights (pickle files can run code and are not read" in error_of(folder)
    (folder / "config.json").unlink()
    assert f"{folder / 'config.json'}: the file is missing" in error_of(folder)


def test_a_damaged_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "lla')
    assert "cannot be read as JSON" in error_of(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64])
def test_types_that_cannot_compute(folder: Path, dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=r"dtype: cannot compute in torch\..* \(use float32"):
        load(folder, dtype)
