"""A run's state on disk, and the refusal to go on with another run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from specdec_ref.distill.config import DistillConfig
from specdec_ref.errors import CheckpointError, UsageError

_PARTS = ("step", "elapsed", "order", "drafts", "averages", "optimisers", "rng", "config")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What training saved in `path`; empty if it has saved nothing yet.

    Raises:
        CheckpointError: the file is truncated, damaged or something else. (Training replaces it in one step, so a kill
            does not cause that.)
    """
    if not path.exists():
        return {}
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
        missing = [part for part in _PARTS if part not in saved]
    except Exception as error:  # damage shows as RuntimeError, EOFError, UnpicklingError, KeyError …
        raise CheckpointError(
            f"the checkpoint is damaged: {' '.join(str(error).split())[:200]}", where=str(path), fix=_FIX
        ) from error
    if missing:
        raise CheckpointError(f"the checkpoint lacks {missing[0]!r}", where=str(path), fix=_FIX)
    return saved


_FIX = "delete it to train from the beginning, or take a sound copy"


def check_same_run(saved: str, config: DistillConfig, where: Path) -> None:
    """Refuse to continue a checkpoint with another seed, target or shape of drafts: nothing would fit, or all of it would lie.

    Args:
        saved: the checkpoint's `config`, as JSON.
        config: of this command. Schedule and logging may have changed.
        where: the checkpoint.

    Raises:
        UsageError: names the first setting that differs.
    """
    theirs, ours = json.loads(saved), config.to_json()
    refuse_differences(theirs, ours, ("target", "seed", "drafts"), where)


def refuse_differences(
    theirs: dict[str, Any], ours: dict[str, Any], keys: tuple[str, ...], where: Path
) -> None:
    """Raise a UsageError for the first of `keys` whose value on disk is not this command's."""
    for key in keys:
        if key in theirs and theirs[key] != ours[key]:
            raise UsageError(
                f"was made with another {key} ({_short(theirs[key])}, now {_short(ours[key])})",
                where=str(where),
                fix="use the same --config and --set, or another --out folder",
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
