"""Making `assets/golden` and `assets/models/nano-*`, and checking that they are what the code says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from specdec_ref.errors import CheckpointError, SpecdecError
from specdec_ref.files import atomic_file
from specdec_ref.golden import primitives, rounds, texts, traces
from specdec_ref.golden.content import TOLERANCES, count_cases, differences, dump, sha256, tensors_sha256
from specdec_ref.golden.nano import DRAFT, TARGET, one_thread
from specdec_ref.golden.runs import load_nano

SCHEMA_VERSION = 1
"""Rises when a reader of the files has to change."""

GENERATOR_VERSION = 1
"""Rises when the generator makes other cases of the same form."""

MANIFEST, SCHEMA = "manifest.json", "schema.json"


def vectors(models: Path, *, twice: bool = False) -> dict[str, dict[str, Any]]:
    """Compute every golden file but schema and manifest, by file name.

    Args:
        models: folder that holds the nano pair.
        twice: run every trace in float64 as well, which must decide the same. Takes twice the time.
    """
    nano = load_nano(models)
    precise = load_nano(models, torch.float64) if twice else None
    with one_thread():
        made_traces = traces.traces(nano, precise)
    made = {
        "philox": primitives.philox(),
        "draw": primitives.drawing(),
        "acceptance": primitives.acceptance(),
        "processors": primitives.processors() | {"tolerances": TOLERANCES},
        "verifiers": rounds.verifiers(),
        "lookup": rounds.lookup(),
        "policies": rounds.policies(),
        "traces": made_traces,
        "tokenizer_nano": texts.tokenizer_nano(nano.tokenizer),
    }
    return {
        f"{name}.json": {"kind": name, "schema_version": SCHEMA_VERSION} | json.loads(json.dumps(content))
        for name, content in made.items()
    }


def manifest(files: dict[str, dict[str, Any]], schema: dict[str, Any], models: Path) -> dict[str, Any]:
    """Hashes over the content of the golden files and of the nano pair's weights."""
    entries: dict[str, Any] = {
        name: {"sha256": sha256(content), "cases": count_cases(content), "schema_version": SCHEMA_VERSION}
        for name, content in sorted(files.items())
    }
    entries[SCHEMA] = {"sha256": sha256(schema), "cases": 0, "schema_version": SCHEMA_VERSION}
    return {
        "kind": "manifest",
        "schema_version": SCHEMA_VERSION,
        "generator_version": GENERATOR_VERSION,
        "files": entries,
        "models": {name: _model_entry(models / name) for name in (TARGET, DRAFT)},
    }


def _model_entry(folder: Path) -> dict[str, Any]:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    stored = sum(tensor.numel() for tensor in weights.values() if tensor.is_floating_point())
    config, tokenizer = (read(folder / name) for name in ("config.json", "tokenizer.json"))
    return {
        "sha256": tensors_sha256(weights),
        "parameters": stored,
        "config_sha256": sha256(config),
        "tokenizer_sha256": sha256(tokenizer),
    }


def generate(out: Path, models: Path, schema_file: Path) -> list[str]:
    """Write what changed into `out` and return those files' names; what is the same keeps its bytes.

    Args:
        out: folder of the golden files, made if need be.
        models: folder of the nano pair.
        schema_file: the hand-written schema, copied along.
    """
    schema = read(schema_file)
    files = vectors(models, twice=True)
    for name, content in files.items():
        old = _old(out / name)
        if old is not None and not any(differences(old, content)):
            files[name] = old  # the same within the tolerances: the manifest then stays the same too
    wanted = files | {SCHEMA: schema, MANIFEST: manifest(files, schema, models)}
    written = []
    for name, content in wanted.items():
        if _old(out / name) != content:
            write(out / name, schema_file.read_text(encoding="utf-8") if name == SCHEMA else dump(content))
            written.append(name)
    return written


def check(out: Path, models: Path, schema_file: Path) -> tuple[int, int]:
    """Compare `out` with freshly computed content; return the numbers of files and cases.

    Raises:
        SpecdecError: something differs; the message names the first place.
    """
    files, schema = vectors(models), read(schema_file)
    stored = {name: read(out / name) for name in [*files, SCHEMA, MANIFEST]}
    for name, content in [*files.items(), (SCHEMA, schema)]:
        _refuse(name, stored[name], content)
    kept = {name: stored[name] for name in files}
    _refuse(MANIFEST, stored[MANIFEST], manifest(kept, stored[SCHEMA], models))
    return len(stored), sum(count_cases(content) for content in kept.values())


def _refuse(name: str, stored: Any, fresh: Any) -> None:
    difference = next(differences(stored, fresh), None)
    if difference is not None:
        raise SpecdecError(
            difference, where=name, fix="`python -m specdec_ref.golden` makes it anew, if the change is meant"
        )


def read(path: Path) -> Any:
    """The JSON content of a file.

    Raises:
        CheckpointError: it is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            "the file is missing", where=str(path), fix="make it with `python -m specdec_ref.golden`"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"is not JSON: {error}", where=str(path)) from None


def _old(path: Path) -> Any:
    try:
        return read(path)
    except CheckpointError:
        return None


def write(path: Path, text: str) -> None:
    """Write a text file in one step."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
