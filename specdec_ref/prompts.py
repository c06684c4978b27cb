"""Prompt sets: the kit's own, or any JSON-lines file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specdec_ref import paths
from specdec_ref.errors import UsageError


@dataclass(frozen=True)
class Prompt:
    """One prompt of a set: `turns` are the user's messages (usually one), `kind` its class."""

    id: str
    kind: str
    turns: tuple[str, ...]


def load_prompts(source: Path | None = None) -> list[Prompt]:
    """Read prompts, the classes interleaved (first of each class, second of each, …).

    Args:
        source: a JSON-lines file, or a folder of them. Each line has `prompt` (or `turns`, a list) and optionally `id` and
            `class` (or `category`). Default: the kit's own set.

    Raises:
        UsageError: missing or empty source, or a line that is not such an object; names the line.
    """
    source = source or paths.assets() / "prompts"
    files = sorted(source.glob("*.jsonl")) if source.is_dir() else [source]
    if not files or not all(file.is_file() for file in files):
        raise UsageError("no prompts here", where=str(source), fix="name a .jsonl file or a folder of them")
    by_class: dict[str, list[Prompt]] = {}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                prompt = _parse(line, file, number)
                by_class.setdefault(prompt.kind, []).append(prompt)
    longest = max((len(group) for group in by_class.values()), default=0)
    if not longest:
        raise UsageError("holds no prompts", where=str(source))
    return [group[i] for i in range(longest) for group in by_class.values() if i < len(group)]


def _parse(line: str, file: Path, number: int) -> Prompt:
    where = f"{file}:{number}"
    try:
        data = json.loads(line)
    except ValueError as error:
        raise UsageError(f"not JSON ({error})", where=where) from None
    turns = data.get("turns", [data.get("prompt")]) if isinstance(data, dict) else None
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t for t in turns):
        raise UsageError("needs `prompt` (text) or `turns` (list of texts)", where=where)
    kind = str(data.get("class", data.get("category", "all")))
    return Prompt(str(data.get("id", f"{file.stem}-{number}")), kind, tuple(turns))
