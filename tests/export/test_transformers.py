"""Folders for transformers: they load with the Auto classes, say what the kit says, and assist each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specdec_ref import checkpoints
from specdec_ref.cli import app
from specdec_ref.decoding import autoregressive
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.export.full_head import with_full_head
from specdec_ref.export.hf import to_transformers
from specdec_ref.export.source import refuse_existing
from specdec_ref.quiet import silence_libraries
from specdec_ref.runner import Runner

silence_libraries()
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

TEXT = "Tell me about a cat."


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The nano pair, exported on the command line."""
    out = tmp_path_factory.mktemp("hf")
    for name in ("nano-target", "nano-draft"):
        result = CliRunner().invoke(
            app, ["export", "transformers", "--model", name, "--out", str(out / name)]
        )
        assert result.exit_code == 0, result.output
    return {name: out / name for name in ("nano-target", "nano-draft")}


@pytest.mark.parametrize("name", ["nano-target", "nano-draft"])
def test_the_auto_classes_load_the_same_model_and_tokenizer(folders: dict[str, Path], name: str) -> None:
    ours = checkpoints.load(name)
    assert ours.tokenizer is not None
    theirs = AutoModelForCausalLM.from_pretrained(folders[name])
    tokenizer = AutoTokenizer.from_pretrained(folders[name])
    message = [{"role": "user", "content": TEXT}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    assert list(ids) == ours.tokenizer.chat(message)
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits[0]
    head = ours.model.head_ids
    shared = logits if head is None else logits[:, head]
    torch.testing.assert_close(shared, ours.model(torch.tensor(ids)), atol=1e-3, rtol=0)
    assert theirs.generation_config.eos_token_id == ours.eos_ids[0]


def test_the_exported_draft_assists_the_exported_target(folders: dict[str, Path]) -> None:
    target, draft = (AutoModelForCausalLM.from_pretrained(folder) for folder in folders.values())
    kit = checkpoints.load("nano-target")
    assert kit.tokenizer is not None
    ids = kit.tokenizer.chat([{"role": "user", "content": TEXT}])
    expected = autoregressive(Runner(kit.model), ids, max_new_tokens=24, eos_ids=kit.eos_ids).tokens
    got = target.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),
        assistant_model=draft,
        do_sample=False,
        max_new_tokens=24,
    )
    assert got[0, len(ids) :].tolist() == expected


def test_the_kits_own_loader_takes_the_folder(folders: dict[str, Path]) -> None:
    ours, again = checkpoints.load("nano-target"), checkpoints.load(folders["nano-target"])
    assert torch.equal(again.model(torch.arange(9)), ours.model(torch.arange(9)))
    assert again.eos_ids == ours.eos_ids and again.tokenizer_sha256 == ours.tokenizer_sha256


def test_a_width_that_the_heads_do_not_divide_is_refused_or_avoided() -> None:
    model = checkpoints.load("draft-320x4").model  # 5 heads
    assert to_transformers(with_full_head(model, multiple=5)).config.hidden_size == 325
    with pytest.raises(CheckpointError, match="multiple of the 5 heads"):
        to_transformers(with_full_head(model, multiple=32))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    for path in (tmp_path, tmp_path / "mine"):
        with pytest.raises(UsageError, match="is there already"):
            refuse_existing(path)
    refuse_existing(tmp_path / "new")
