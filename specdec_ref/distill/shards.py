"""Data on disk: one file a shard, complete or absent, and a manifest that says what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_ref.errors import CheckpointError
from specdec_ref.files import atomic_file, read_json, sha256


def shard_path(folder: Path, index: int) -> Path:
    """Where shard `index` is or will be."""
    return folder / f"shard-{index:05d}.safetensors"


def write_shard(folder: Path, index: int, tokens: Tensor, roles: Tensor, about: dict[str, Any]) -> Path:
    """Write token ids [rows, T] as uint16 and roles [rows, T] as uint8, atomically.

    Raises:
        CheckpointError: a token id does not fit, or the disk is full.
    """
    from safetensors.numpy import save

    if int(tokens.max()) > 0xFFFF:
        raise CheckpointError("token ids above 65535 do not fit a shard", where=str(folder))
    arrays = {"tokens": tokens.cpu().numpy().astype(np.uint16), "roles": roles.cpu().numpy().astype(np.uint8)}
    # One metadata key only: safetensors writes several in random order, and equal shards must have equal hashes.
    content = save(arrays, metadata={"shard": json.dumps({"index": index, **about}, sort_keys=True)})
    path = shard_path(folder, index)
    with atomic_file(path, needs=len(content)) as part:
        part.write_bytes(content)
    return path


def finished_shards(folder: Path) -> list[int]:
    """Indices of the shards that are there, ascending."""
    return sorted(int(path.stem.split("-")[1]) for path in folder.glob("shard-*.safetensors"))


def shard_header(folder: Path, index: int) -> dict[str, Any]:
    """What `write_shard` noted in a shard (`index`, `seed`, `run`), and the `shape` of its tokens.

    Raises:
        CheckpointError: the shard is damaged.
    """
    from safetensors import safe_open

    path = shard_path(folder, index)
    try:
        with safe_open(path, framework="np") as file:
            shape = file.get_slice("tokens").get_shape()
            return {**json.loads(file.metadata()["shard"]), "shape": list(shape)}
    except Exception as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the shard is damaged: {error}", where=str(path), fix="delete it and run `data` again"
    )


def read_shards(folder: Path) -> tuple[Tensor, Tensor]:
    """All shards, in order: token ids [rows, T] (int32) and roles [rows, T] (uint8), on the CPU.

    Raises:
        CheckpointError: there is none, or one is damaged.
    """
    from safetensors.numpy import load

    tokens, roles = [], []
    for index in finished_shards(folder):
        path = shard_path(folder, index)
        try:
            arrays = load(path.read_bytes())
            tokens.append(torch.from_numpy(arrays["tokens"].astype(np.int32)))
            roles.append(torch.from_numpy(arrays["roles"].copy()))
        except Exception as error:
            raise _damaged(path, error) from error
    if not tokens:
        raise CheckpointError("there is no data", where=str(folder), fix="run the `data` stage first")
    return torch.cat(tokens), torch.cat(roles)


def write_manifest(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Describe the finished shards in `manifest.json` (counts, hashes, and `about`) and return the description."""
    tokens, roles = read_shards(folder)
    shards = [
        {"index": i, "file": shard_path(folder, i).name, "sha256": sha256(shard_path(folder, i))}
        for i in finished_shards(folder)
    ]
    counts = torch.bincount(roles.flatten(), minlength=3).tolist()
    manifest = {
        **about,
        "rows": tokens.shape[0],
        "tokens_per_row": tokens.shape[1],
        "tokens": tokens.numel(),
        "tokens_by_role": dict(zip(("user", "assistant", "document"), counts, strict=True)),
        "distinct_tokens": int((torch.bincount(tokens.flatten().long()) > 0).sum()),
        "shards": shards,
    }
    with atomic_file(folder / "manifest.json") as part:
        part.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `write_manifest` wrote; empty if it has not yet."""
    path = folder / "manifest.json"
    return read_json(path) if path.exists() else {}
