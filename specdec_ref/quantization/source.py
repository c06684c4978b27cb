"""A model as tensors by name, before it becomes a `Decoder`: what quantization reads from and transformations change."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_ref import checkpoints
from specdec_ref.checkpoints.config import parse_config
from specdec_ref.checkpoints.folder import FolderTensors
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.files import read_json
from specdec_ref.model import Decoder, ModelConfig
from specdec_ref.quantization.tensors import layer_prefix, layer_shapes, tensor_shapes
from specdec_ref.tokenizer import Tokenizer

COMPANIONS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files beside the weights that a model needs to be used; carried along into a quantized file."""


@dataclass(frozen=True)
class Source:
    """A checkpoint with what belongs to it.

    Attributes:
        name: short name for tables.
        raw: the parsed `config.json`.
        tensors: by Hugging Face's names; read when asked for, so a large model is never whole in memory.
        files: contents of the companion files by name.
    """

    name: str
    raw: dict[str, Any]
    tensors: Mapping[str, Tensor]
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        """The model's shapes and arithmetic."""
        return parse_config(self.raw, where=self.name)

    def take(self, name: str) -> Tensor:
        """One tensor, checked for presence and shape.

        Raises:
            CheckpointError: it is missing or has another shape than config.json says.
        """
        if name not in self.tensors:
            raise CheckpointError(
                f"tensor {name!r} is missing", where=self.name, fix="take a complete copy of the model"
            )
        tensor, shape = self.tensors[name], tensor_shapes(self.config)[name]
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {shape}",
                where=self.name,
                fix="config.json and the weights are not of the same model",
            )
        return tensor

    def layer(self, index: int) -> dict[str, Tensor]:
        """The tensors of one layer in float32, by name without `layer_prefix`; checked as in `take`."""
        prefix = layer_prefix(index)
        return {name: self.take(prefix + name).float() for name in layer_shapes(self.config)}

    @property
    def tokenizer_sha256(self) -> str | None:
        """Fingerprint of the model's tokenizer, or of the one that a draft's config.json names."""
        tokenizer = self.tokenizer
        found = (
            tokenizer.fingerprint if tokenizer else (self.raw.get("specdec") or {}).get("tokenizer_sha256")
        )
        return found if isinstance(found, str) else None

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's own tokenizer; None where it has none."""
        if "tokenizer.json" not in self.files:
            return None
        with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
            for name, data in self.files.items():
                (Path(folder) / name).write_bytes(data)
            return Tokenizer.from_folder(Path(folder))

    def model(self, dtype: torch.dtype = torch.float32) -> Decoder:
        """The decoder that these tensors make, frozen."""
        return Decoder(self.config).to(dtype).load_weights(self.tensors, where=self.name).eval()


def open_source(name_or_path: str | Path, *, quiet: bool = False) -> Source:
    """Open a model by name, folder or hub id, as `checkpoints.load` takes them.

    Raises:
        CheckpointError: it cannot be found or is damaged.
        UsageError: it is a quantized file already.
    """
    if Path(name_or_path).is_file():
        raise UsageError(
            "this is a file",
            where=str(name_or_path),
            fix="name the full-precision model: a name, a folder or a hub id",
        )
    folder = checkpoints.fetch(str(name_or_path), quiet=quiet)
    files = {name: (folder / name).read_bytes() for name in COMPANIONS if (folder / name).is_file()}
    return Source(folder.name, read_json(folder / "config.json"), FolderTensors(folder), files)
