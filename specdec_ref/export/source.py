"""What an export begins with: a model by name, and the tokenizer that its ids belong to."""

from __future__ import annotations

from pathlib import Path

from specdec_ref import checkpoints
from specdec_ref.checkpoints import LoadedModel
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.tokenizer import Tokenizer

DEFAULT_TARGET = "smollm2-135m"


def load_source(name: str) -> tuple[LoadedModel, Tokenizer]:
    """Load a model in float32 with its tokenizer; a draft without one gets its target's, checked by fingerprint.

    Args:
        name: "target" (the default target), "draft" (the default draft), or anything `checkpoints.load` takes.

    Raises:
        CheckpointError: the model cannot be loaded, or no tokenizer fits it.
    """
    loaded = checkpoints.load(DEFAULT_TARGET if name == "target" else name)
    if loaded.tokenizer is not None:
        return loaded, loaded.tokenizer
    target = loaded.specdec.get("target")
    if not isinstance(target, str):
        raise CheckpointError(
            "the model has no tokenizer and names no target to take it from",
            where=str(loaded.folder),
            fix="put tokenizer.json beside its weights",
        )
    owner = checkpoints.load(target)
    checkpoints.check_same_tokenizer(owner, loaded)
    if owner.tokenizer is None:
        raise CheckpointError("the model's target has no tokenizer", where=str(owner.folder))
    return loaded, owner.tokenizer


def refuse_existing(path: Path) -> None:
    """Refuse to write over a folder that holds something: an export replaces nothing that it did not make.

    Raises:
        UsageError: `path` is a file, or a folder that is not empty.
    """
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UsageError("is there already", where=str(path), fix="remove it, or name another --out")
