"""Saying what a stage does: one JSON object a line into a file, one progress bar on the terminal, main process only."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from specdec_ref.errors import CheckpointError


class Log:
    """Appends JSON lines to `path` and prints them, on the main process; elsewhere it does nothing.

    Args:
        path: the log file; lines are added to what earlier commands wrote.
        main: whether this is the main process.
    """

    def __init__(self, path: Path, main: bool) -> None:
        self.main = main
        self.path = path
        self._start = time.perf_counter()
        if main:
            path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, event: str, **values: Any) -> None:
        """Write one line: the event, seconds since the stage began, and the values."""
        if not self.main:
            return
        line = {"event": event, "s": round(time.perf_counter() - self._start, 2), **rounded(values)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        from tqdm import tqdm

        tqdm.write(
            " ".join(
                f"{k}={json.dumps(v)}" if k != "event" else f"[{line['s']:8.1f}] {v}"
                for k, v in line.items()
                if k != "s"
            )
        )
        sys.stdout.flush()


def read_log(path: Path, event: str) -> list[dict[str, Any]]:
    """The lines of a log with that event, in order. Steps that a resumed run took twice appear once, as last taken.

    Raises:
        CheckpointError: the file is missing or is no such log. A last line that a kill cut short is left out.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        kept = [line for line in found if line["event"] == event]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"is not a log of distillation: {error!r}", where=str(path)) from error
    return list({line.get("step", number): line for number, line in enumerate(kept)}.values())


def bar(total: int | None, label: str, main: bool, unit: str = "it") -> Any:
    """A tqdm progress bar on stderr, silent when the output is not a terminal or this is not the main process."""
    from tqdm import tqdm

    return tqdm(
        total=total, desc=label, unit=unit, unit_scale=True, disable=not main or not sys.stderr.isatty()
    )


def rounded(value: Any, digits: int = 6) -> Any:
    """`value` with every float rounded, however deep."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v, digits) for v in value]
    return value
