"""GGUF files written here, read back by the kit's own reader: the same logits, tokenizer and chat template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specdec_ref import checkpoints
from specdec_ref.checkpoints import LoadedModel
from specdec_ref.checkpoints.config import parse_config
from specdec_ref.checkpoints.gguf_file import GGUFFile, splitting_of
from specdec_ref.cli import app
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.export.gguf import write_gguf
from specdec_ref.export.source import load_source
from specdec_ref.model import Decoder, RopeScaling
from specdec_ref.tokenizer import Tokenizer
from tests.helpers.errors import error_of, leftovers
from tests.helpers.models import tiny_decoder
from tests.helpers.tiny_tokenizer import tiny_tokenizer, tokens

IDS = torch.arange(3, 60, 3)


def loaded(model: Decoder, tokenizer: Tokenizer) -> LoadedModel:
    return LoadedModel(model, tokenizer, (2,), 1, "tiny", "a test", Path("tiny"))


def read(path: Path) -> tuple[Decoder, Tokenizer]:
    file = GGUFFile(path)
    config = parse_config(file.config())
    return Decoder(config).load_weights(dict(file.tensors())).eval(), file.tokenizer()


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("fp16", 0.05)])
def test_what_was_written_is_read_back(tmp_path: Path, precision: str, bound: float) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_decoder(1, vocab=len(tokens()), dtype=torch.float32)
    path = write_gguf(tmp_path / "x.gguf", loaded(model, tokenizer), tokenizer, precision=precision)  # type: ignore[arg-type]
    again, theirs = read(path)
    assert (again(IDS) - model(IDS)).abs().max() < bound
    assert theirs.fingerprint == tokenizer.fingerprint
    assert theirs.chat_template == tokenizer.chat_template
    assert (theirs.bos_id, theirs.eos_id) == (1, 2)
    text = "the user  has 12 cafés <|im_end|>"
    assert theirs.encode(text) == tokenizer.encode(text)
    assert again.config == replace(model.config, head_rows=None)
    assert leftovers(tmp_path) == []


def test_a_reduced_head_comes_back_as_a_whole_one(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    head = list(range(0, len(tokens()), 3))
    model = tiny_decoder(2, vocab=len(tokens()), head_ids=head, dtype=torch.float32)
    again, _ = read(write_gguf(tmp_path / "x.gguf", loaded(model, tokenizer), tokenizer))
    logits = again(IDS)
    assert (logits[:, head] - model(IDS)).abs().max() < 1e-4
    others = [id for id in range(len(tokens())) if id % 3]
    assert logits[:, others].max() < -1000
    half, _ = read(write_gguf(tmp_path / "y.gguf", loaded(model, tokenizer), tokenizer, precision="fp16"))
    assert half(IDS)[:, others].max() < -1000


def test_rows_without_a_token_are_padding(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_decoder(3, vocab=len(tokens()) + 5, dtype=torch.float32)
    again, _ = read(write_gguf(tmp_path / "x.gguf", loaded(model, tokenizer), tokenizer))
    assert again.config.vocab_size == len(tokens()) + 5


@pytest.mark.parametrize(
    "change",
    [{"qkv_bias": True}, {"mlp_bias": True}, {"qk_norm": True}, {"rope_scaling": RopeScaling("linear", 2.0)}],
)
def test_models_that_are_not_plain_llama_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    tokenizer = tiny_tokenizer()
    config = replace(tiny_decoder(1, vocab=len(tokens())).config, **change)  # type: ignore[arg-type]
    message = error_of(lambda: write_gguf(tmp_path / "x.gguf", loaded(Decoder(config), tokenizer), tokenizer))
    assert "only plain Llama models" in message
    assert list(tmp_path.iterdir()) == []


def test_unknown_splitting_rules_and_precisions_are_refused(tmp_path: Path) -> None:
    rules = tiny_tokenizer().to_json()
    assert splitting_of(rules, where="x") == "smollm"
    assert (
        splitting_of({**rules, "pre_tokenizer": rules["pre_tokenizer"]["pretokenizers"][1]}, where="x")
        == "gpt-2"
    )
    for other in (
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"pre_tokenizer": None},
    ):
        with pytest.raises(CheckpointError, match="splitting rules"):
            splitting_of({**rules, **other}, where="x")
    tokenizer = tiny_tokenizer()
    model = loaded(tiny_decoder(1, vocab=len(tokens())), tokenizer)
    with pytest.raises(UsageError, match="fp32 or fp16"):
        write_gguf(tmp_path / "x", model, tokenizer, precision="int4")  # type: ignore[arg-type]


def test_weights_beyond_float16_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_decoder(1, vocab=len(tokens()), dtype=torch.float32)
    model.layers[0].down.weight[0, 0] = 1e5
    target = tmp_path / "x.gguf"
    target.write_bytes(b"what was there")
    message = error_of(lambda: write_gguf(target, loaded(model, tokenizer), tokenizer, precision="fp16"))
    assert "down_proj" in message and "--precision fp32" in message
    assert target.read_bytes() == b"what was there" and leftovers(tmp_path) == []


def test_the_command_writes_the_nano_pair(tmp_path: Path) -> None:
    for name in ("nano-target", "nano-draft"):
        out = tmp_path / f"{name}.gguf"
        result = CliRunner().invoke(app, ["export", "gguf", "--model", name, "--out", str(out)])
        assert result.exit_code == 0, result.output
        model, ours = read(out)
        kit, tokenizer = load_source(name)
        assert ours.fingerprint == tokenizer.fingerprint
        head = slice(None) if kit.model.head_ids is None else kit.model.head_ids
        assert (model(IDS)[:, head] - kit.model(IDS)).abs().max() < 1e-4


def test_a_draft_of_no_known_target_has_no_tokenizer(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from specdec_ref.export.hf import hf_state_dict

    model = tiny_decoder(1)
    save_file(hf_state_dict(model) | {}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "head_dim": 8,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false}'
    )
    assert "names no target" in error_of(lambda: load_source(str(tmp_path)))
    assert checkpoints.load(tmp_path).tokenizer is None
