"""Options that several commands share, and the reading and writing of their files."""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specdec_ref.errors import UsageError
from specdec_ref.files import atomic_file

if TYPE_CHECKING:
    import torch

Target = Annotated[str, typer.Option(help="Target model: a name, a folder, or a hub id.")]
DraftName = Annotated[
    str,
    typer.Option("--draft", help="draft, lookup, lookup+draft, none, or a model's name, folder or hub id."),
]
Json = Annotated[
    Path | None, typer.Option("--json", help="Also write the result to this file.", dir_okay=False)
]
Context = Annotated[int, typer.Option(min=1, help="Tokens that prompt and answer may have together.")]

PRECISIONS = ("fp32", "bf16", "fp64")


def dtype_of(precision: str) -> torch.dtype:
    """The torch dtype of a precision's name on the command line."""
    import torch

    names = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
    if precision not in names:
        raise UsageError(f"unknown precision {precision!r}", fix=f"use one of: {', '.join(names)}")
    return names[precision]


def model_and_dtype(model: str, precision: str) -> tuple[str, torch.dtype]:
    """A model and its precision as options -> what to load and what to compute in; a quantized file stands for the model.

    Raises:
        UsageError: neither a precision's name nor a file.
    """
    if precision not in PRECISIONS and Path(precision).expanduser().is_file():
        return precision, dtype_of("fp32")
    return model, dtype_of(precision)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write `data` atomically: the old file stays if anything goes wrong.

    Raises:
        CheckpointError: the folder cannot be written or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        temporary.write_text(
            json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8"
        )


def check_writable(path: Path | None) -> None:
    """Refuse a result file that could not be written, before the work rather than after it."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write there ({error.strerror})", where=str(path), fix="name another --json file"
        ) from None


def versions() -> dict[str, str]:
    """Versions of what decides results and speed."""
    found = {"python": platform.python_version()}
    for name in ("specdec_ref", "torch", "transformers", "tokenizers", "numpy", "executorch", "coremltools"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the timings were taken on."""
    import torch

    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": model,
        "architecture": platform.machine(),
        "system": platform.system(),
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
    }


def header(seed: int) -> dict[str, Any]:
    """The fields that every benchmark file carries."""
    return {
        "command": " ".join(
            ["specdec", *(Path(word).name if "/" in word else word for word in sys.argv[1:])]
        ),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
        "seed": seed,
    }
