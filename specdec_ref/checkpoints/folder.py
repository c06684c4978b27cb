"""Weights from a local folder: one or several safetensors files, read one tensor at a time.

safetensors files are mapped, not read: a tensor's bytes come from the disk when it is asked for, so loading a model
never needs more memory than the model plus one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from specdec_ref.errors import CheckpointError
from specdec_ref.files import read_json
from specdec_ref.model import ModelConfig

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SCALE = "_scale"
_IGNORED = ("rotary_emb.inv_freq",)  # some exporters store it; it follows from the settings


class FolderTensors(Mapping[str, Tensor]):
    """The tensors of a checkpoint folder by name; each access reads from the file.

    A tensor stored in int8 with a companion `<name>_scale` is returned as their product in float32: the draft's
    embedding is kept that way because it is most of its bytes.

    Attributes:
        read: names asked for so far (scales included), to find what a model left unused.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: set[str] = set()
        self._files: dict[Path, Any] = {}
        self._where = self._shards()

    def __getitem__(self, name: str) -> Tensor:
        path = self._where[name]
        self.read.add(name)
        tensor = self._tensor(path, name)
        if tensor.dtype == torch.int8:
            scale = name + _SCALE
            if scale not in self._where:
                raise CheckpointError(f"int8 tensor {name!r} has no {scale!r} beside it", where=str(path))
            self.read.add(scale)
            try:
                return tensor.float() * self._tensor(self._where[scale], scale).float()
            except RuntimeError as error:
                raise CheckpointError(
                    f"{scale!r} does not fit the shape of {name!r}", where=str(path)
                ) from error
        if not tensor.is_floating_point() and name != "specdec.head_ids":
            raise CheckpointError(f"tensor {name!r} has unsupported type {tensor.dtype}", where=str(path))
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def check_all_used(self, config: ModelConfig) -> None:
        """Refuse tensors that the model did not ask for: it would compute something else than their authors meant.

        Raises:
            CheckpointError: a tensor is left over, or a tied model comes with a different output head.
        """
        left = [name for name in self._where if name not in self.read and not name.endswith(_IGNORED)]
        if config.tie_word_embeddings and config.head_rows is None and "lm_head.weight" in left:
            if not torch.equal(self["lm_head.weight"], self["model.embed_tokens.weight"]):
                raise CheckpointError(
                    "config.json ties the output head to the embedding, but the file holds a different head",
                    where=str(self.folder),
                    fix='set "tie_word_embeddings": false in config.json if the head is meant',
                )
            left.remove("lm_head.weight")
        if left:
            raise CheckpointError(
                f"tensor {left[0]!r} is not part of the model that config.json describes"
                + (f", nor are {len(left) - 1} more" if len(left) > 1 else ""),
                where=str(self.folder),
                fix="config.json and the weights are not of the same model",
            )

    def _shards(self) -> dict[str, Path]:
        single, index = self.folder / SINGLE, self.folder / INDEX
        if single.is_file():
            return {name: single for name in self._open(single).keys()}  # noqa: SIM118 - not a dict
        if not index.is_file():
            pickled = any(self.folder.glob("pytorch_model*.bin"))
            raise CheckpointError(
                f"there is no {SINGLE}" + (", only pickled weights" if pickled else ""),
                where=str(self.folder),
                fix="pickle files can run code and are not read: convert them"
                if pickled
                else "take a complete copy of the model",
            )
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(file, str) for file in named.values()):
            raise CheckpointError("holds no weight_map", where=str(index), fix="take a sound copy")
        where = {}
        for name, file in named.items():
            path = self.folder / Path(file).name
            if not path.is_file():
                raise CheckpointError(
                    f"shard {file!r} is missing",
                    where=str(self.folder),
                    fix="take a complete copy of the model",
                )
            where[name] = path
        for path in sorted(set(where.values())):
            self._open(path)
        return where

    def _open(self, path: Path) -> Any:
        if path not in self._files:
            try:
                self._files[path] = safetensors.safe_open(path, framework="pt")
            except Exception as error:  # damage is reported as SafetensorError, OSError or UnicodeDecodeError
                raise _damaged(path, error) from error
        return self._files[path]

    def _tensor(self, path: Path, name: str) -> Tensor:
        try:
            return self._open(path).get_tensor(name)
        except safetensors.SafetensorError as error:
            if "does not contain tensor" in str(error):
                raise CheckpointError(
                    f"tensor {name!r} is missing",
                    where=str(path),
                    fix="the index names it there: take a sound copy",
                ) from error
            raise _damaged(path, error) from error


def check_head_ids(tensors: Mapping[str, Tensor], config: ModelConfig, *, where: str) -> None:
    """A reduced head's row -> token list must ascend (so that the lowest row wins ties) and stay inside the vocabulary.

    Raises:
        CheckpointError: it does not.
    """
    if config.head_rows is None or "specdec.head_ids" not in tensors:
        return
    ids = tensors["specdec.head_ids"].long()
    if not bool((ids.diff() > 0).all()) or int(ids.min()) < 0 or int(ids.max()) >= config.vocab_size:
        raise CheckpointError("specdec.head_ids must be ascending token ids of the vocabulary", where=where)


def _damaged(path: Path, error: Exception) -> CheckpointError:
    detail = " ".join(str(error).split())
    return CheckpointError(
        f"truncated or damaged: {detail}", where=str(path), fix="take a sound copy of the file"
    )
