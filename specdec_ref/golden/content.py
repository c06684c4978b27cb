"""Golden files as content: how numbers are written, what a hash covers, when two versions are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOLERANCES = {"probabilities": 1e-6}
"""Absolute tolerance by key, for the only numbers that pass through exp; all else must be equal."""

_WIDTH = 110


def float32_list(values: Tensor) -> list[float | None]:
    """A float32 row as the shortest decimals that read back as the same float32; -inf becomes null (None)."""
    return [_shortest(float(value)) for value in values.float().tolist()]


def _shortest(value: float) -> float | None:
    if value == -np.inf:
        return None
    number = float(str(np.float32(value)))
    # A reader parses a double and narrows it: the two roundings must not end elsewhere.
    if np.float32(number) != np.float32(value):
        raise ValueError(f"{value!r} does not survive being written as {number!r}")
    return number


def row(values: Sequence[float | None]) -> Tensor:
    """The float32 tensor that `float32_list` wrote."""
    return torch.tensor([-torch.inf if value is None else value for value in values], dtype=torch.float32)


def canonical(content: Any) -> bytes:
    """JSON with sorted keys and no white space: what hashes cover, so that layout does not matter."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sha256(content: Any) -> str:
    """SHA-256 of `canonical(content)` in hexadecimal."""
    return hashlib.sha256(canonical(content)).hexdigest()


_DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32", torch.int64: "I64"}


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over weights: for each tensor, by ascending name, `name dtype shape` as a line, then its bytes.

    safetensors files of the same weights may differ in their header, so the file's own hash says too much.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        shape = "x".join(str(size) for size in tensor.shape)
        digest.update(f"{name} {_DTYPES[tensor.dtype]} {shape}\n".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def count_cases(content: Mapping[str, Any]) -> int:
    """Number of cases of a golden file: entries of its top-level lists of objects."""
    lists = [
        value
        for value in content.values()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    ]
    return sum(len(value) for value in lists)


def dump(content: Any) -> str:
    """JSON text in which what fits a line stands on one line: a changed case is a changed line."""
    return _layout(content, "") + "\n"


def _layout(value: Any, indent: str) -> str:
    compact = json.dumps(value, allow_nan=False)
    if not isinstance(value, dict | list) or len(indent) + len(compact) <= _WIDTH:
        return compact
    inner = indent + " "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_layout(entry, inner)}" for key, entry in value.items()]
        return "{\n" + _fill(items, inner) + "\n" + indent + "}"
    items = [_layout(entry, inner) for entry in value]
    nested = any(isinstance(entry, dict | list) for entry in value)
    lines = ",\n".join(inner + item for item in items) if nested else _fill(items, inner)
    return "[\n" + lines + "\n" + indent + "]"


def _fill(items: Sequence[str], indent: str) -> str:
    """As many items to a line as fit; one that spans lines stands alone."""
    lines = [list[str]()]
    for item in items:
        length = len(indent) + sum(len(other) + 2 for other in lines[-1]) + len(item) + 1
        if lines[-1] and ("\n" in item or "\n" in lines[-1][-1] or length > _WIDTH):
            lines.append([])
        lines[-1].append(item)
    return ",\n".join(indent + ", ".join(line) for line in lines)


def differences(old: Any, new: Any, where: str = "", tolerance: float = 0.0) -> Iterator[str]:
    """Where and how two contents differ, one line each; nothing if they are the same within `TOLERANCES`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            path = f"{where}.{key}" if where else key
            if key not in new or key not in old:
                yield f"{path}: only in the {'file' if key in old else 'regenerated content'}"
            else:
                yield from differences(old[key], new[key], path, TOLERANCES.get(key, tolerance))
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} entries in the file, {len(new)} regenerated"
        for index, (ours, theirs) in enumerate(zip(old, new, strict=False)):
            yield from differences(ours, theirs, f"{where}[{index}]", tolerance)
    elif not _same(old, new, tolerance):
        yield f"{where}: {json.dumps(old)} in the file, {json.dumps(new)} regenerated"


def _same(old: Any, new: Any, tolerance: float) -> bool:
    if tolerance and isinstance(old, float | int) and isinstance(new, float | int):
        # A token that a processor dropped must stay dropped, however small its probability.
        return abs(old - new) <= tolerance and (old == 0) == (new == 0)
    return type(old) is type(new) and bool(old == new)
