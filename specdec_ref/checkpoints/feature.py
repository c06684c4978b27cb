"""Feature-level drafts on disk: an ordinary model folder whose `config.json` says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specdec_ref import checkpoints
from specdec_ref.checkpoints.config import parse_config
from specdec_ref.checkpoints.folder import FolderTensors, check_head_ids
from specdec_ref.errors import CheckpointError
from specdec_ref.feature_draft import MODEL_TYPE, FeatureConfig, FeatureDraft
from specdec_ref.files import read_json


@dataclass(frozen=True)
class LoadedFeatureDraft:
    """A feature-level draft with what belongs to it.

    Attributes:
        model: frozen, in the dtype asked for.
        name: short name for tables.
        folder: the files it was loaded from.
        specdec: the `specdec` section of config.json.
    """

    model: FeatureDraft
    name: str
    folder: Path
    specdec: dict[str, Any] = field(default_factory=dict)
    tokenizer: None = None

    @property
    def tokenizer_sha256(self) -> str | None:
        """Fingerprint of the tokenizer that its ids belong to."""
        return self.specdec.get("tokenizer_sha256")


def is_feature_draft(name_or_path: str | Path) -> bool:
    """Whether this name stands for a folder, here already, that holds a feature-level draft."""
    folder = checkpoints.local_folder(name_or_path)
    config = None if folder is None else folder / "config.json"
    return config is not None and config.is_file() and read_json(config).get("model_type") == MODEL_TYPE


def load_feature_draft(name_or_path: str | Path, dtype: torch.dtype = torch.float32) -> LoadedFeatureDraft:
    """Load a feature-level draft by its folder or its name under `assets/models`.

    Raises:
        CheckpointError: it is not there, is damaged, or is another kind of model.
    """
    folder = checkpoints.local_folder(name_or_path)
    if folder is None:
        raise CheckpointError("no such folder", where=str(name_or_path))
    raw = read_json(folder / "config.json")
    config = parse_feature_config(raw, where=str(folder / "config.json"))
    tensors = FolderTensors(folder)
    check_head_ids(tensors, config, where=str(folder))
    model = FeatureDraft(config).to(dtype).load_weights(tensors, where=str(folder)).eval()
    tensors.check_all_used(config)
    return LoadedFeatureDraft(model, folder.name, folder, dict(raw.get("specdec") or {}))


def parse_feature_config(raw: dict[str, Any], *, where: str = "config.json") -> FeatureConfig:
    """Translate the `config.json` of a feature-level draft.

    Raises:
        CheckpointError: it is another kind of model's, or a setting is missing or malformed.
    """
    if raw.get("model_type") != MODEL_TYPE:
        raise CheckpointError(
            f"model_type is {raw.get('model_type')!r}, not {MODEL_TYPE!r}",
            where=where,
            fix="load it as a model",
        )
    decoder = parse_config({**raw, "model_type": "llama"}, where=where)
    section = dict(raw.get("specdec") or {})
    width, taps = section.get("target_width"), section.get("taps")
    if not isinstance(width, int) or width < 1:
        raise CheckpointError(f"specdec.target_width must be a positive number, found {width!r}", where=where)
    if (
        not isinstance(taps, list)
        or not taps
        or not all(isinstance(t, int) and t >= 0 for t in taps)
        or taps != sorted(set(taps))
    ):
        raise CheckpointError(
            f"specdec.taps must be ascending numbers of blocks, found {taps!r}", where=where
        )
    if decoder.head_rows is None:
        raise CheckpointError("specdec.head_rows is missing", where=where)
    return FeatureConfig(**vars(decoder), target_width=width, taps=tuple(taps))
