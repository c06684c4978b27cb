"""Writing a safetensors file one tensor at a time, and sealing it.

The safetensors library writes a file from tensors that are all in memory. The format itself needs no such thing: sizes
are known from shapes, so the header goes first and every tensor is put at its place when it is ready. The last tensor is
a SHA-256 over everything before it, header and settings included: a damaged or edited file is refused, not run.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from specdec_ref.errors import CheckpointError

SEAL = "specdec.sha256"
TYPE_NAMES = {
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
}
"""How the header of a safetensors file calls the types that are written here."""

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Name -> (type, shape) of every tensor of a file."""


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


class SealedWriter:
    """Writes one safetensors file; use as a context manager.

    Args:
        path: the file to make (a temporary name: whoever calls renames it).
        layout: every tensor that will be written; wide types are placed first, so that all are aligned.
        metadata: strings for the header.
    """

    def __init__(self, path: Path, layout: Layout, metadata: Mapping[str, str]) -> None:
        ordered = sorted(layout, key=lambda name: -layout[name][0].itemsize)
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        self._places: dict[str, int] = {}
        self._layout = dict(layout) | {SEAL: (torch.uint8, (32,))}
        at = 0
        for name in [*ordered, SEAL]:
            dtype, shape = self._layout[name]
            end = at + _size(dtype, shape)
            header[name] = {"dtype": TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
            self._places[name], at = at, end
        text = json.dumps(header, ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self._path = path
        self._left = set(layout)
        self.total = len(self._head) + at
        """Bytes of the finished file."""

    def __enter__(self) -> SealedWriter:
        self._file = self._path.open("w+b")
        self._file.write(self._head)
        self._file.truncate(self.total)
        return self

    def write(self, name: str, tensor: Tensor) -> None:
        """Put one tensor at its place.

        Raises:
            ValueError: it has another type or shape than the layout says.
        """
        self.write_rows(name, 0, tensor)
        if tuple(tensor.shape) != self._layout[name][1]:
            raise ValueError(f"{name!r} is {tuple(tensor.shape)}, the layout says {self._layout[name][1]}")

    def write_rows(self, name: str, first: int, rows: Tensor) -> None:
        """Put some rows of a tensor at their place, beginning with row `first`."""
        dtype, shape = self._layout[name]
        if rows.dtype != dtype or tuple(rows.shape[1:]) != shape[1:] or first + len(rows) > shape[0]:
            raise ValueError(f"{name!r}: {rows.dtype} {tuple(rows.shape)} does not fit {dtype} {shape}")
        row = _size(dtype, shape) // max(shape[0], 1)
        self._file.seek(len(self._head) + self._places[name] + first * row)
        self._file.write(rows.contiguous().view(torch.uint8).numpy().data)
        if first + len(rows) == shape[0]:
            self._left.discard(name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self._left:
                    raise ValueError(f"{sorted(self._left)[0]!r} was never written")
                self._file.flush()
                digest = _digest(self._path, self.total - 32)
                self._file.seek(self.total - 32)
                self._file.write(digest)
        finally:
            self._file.close()


def check_seal(path: Path) -> None:
    """Read a file through once and compare it with its seal.

    Raises:
        CheckpointError: it differs.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(size - 32)
        expected = file.read()
    if _digest(path, size - 32) != expected:
        raise CheckpointError(
            "its contents do not match its SHA-256: damaged or edited",
            where=str(path),
            fix="quantize the model again, or take a sound copy",
        )


def _digest(path: Path, length: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length > 0:
            chunk = file.read(min(1 << 20, length))
            if not chunk:
                break
            digest.update(chunk)
            length -= len(chunk)
    return digest.digest()
