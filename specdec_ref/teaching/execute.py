"""Run notebooks from a fresh kernel and store them with their outputs, the same bytes wherever nothing changed.

    python -m specdec_ref.teaching.execute notebooks [FILE…]

Each runs top to bottom with its own folder as working directory, is brought into a form without dates, machine names and
random ids, and replaces the stored file only when the whole run succeeded.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import nbformat

from specdec_ref.files import atomic_file
from specdec_ref.teaching.lint_notebooks import find_notebooks

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KEPT_CELL_METADATA = {"tags", "jupyter", "editable"}
TIMEOUT = 600

Notebook = Any


def execute(path: Path, *, timeout: int = TIMEOUT) -> float:
    """Run the notebook at `path` in place and return the seconds it took.

    Args:
        path: stored notebook; untouched if a cell fails.
        timeout: most seconds for one cell.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised; the error quotes it.
    """
    from nbclient import NotebookClient

    notebook = clear(nbformat.read(path, as_version=4))
    start = time.perf_counter()
    NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        store_widget_state=True,
    ).execute()
    seconds = time.perf_counter() - start
    save(normalise(notebook), path)
    return seconds


def clear(notebook: Notebook) -> Notebook:
    """Forget outputs, counts and stored widgets."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def normalise(notebook: Notebook) -> Notebook:
    """A copy that holds nothing of the machine and moment of its run: metadata, cell ids, widget ids, split streams."""
    notebook = copy.deepcopy(notebook)
    widgets = notebook.metadata.get("widgets")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": {"name": "python"}})
    if widgets and widgets.get(WIDGET_STATE, {}).get("state"):
        notebook.metadata["widgets"] = widgets
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
        cell.metadata = nbformat.from_dict(
            {k: v for k, v in cell.metadata.items() if k in KEPT_CELL_METADATA}
        )
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
            for output in cell.outputs:
                output.pop("metadata", None) if output.output_type == "stream" else None
    return _rename_widgets(notebook)


def _joined(outputs: list[Any]) -> list[Any]:
    """Consecutive pieces of one stream as one: where a stream is cut depends on timing."""
    joined: list[Any] = []
    for output in outputs:
        before = joined[-1] if joined else None
        if before and output.output_type == before.output_type == "stream" and output.name == before.name:
            before.text += output.text
        else:
            joined.append(output)
    return joined


def _rename_widgets(notebook: Notebook) -> Notebook:
    """Number the widgets' random ids in order of appearance, everywhere they are mentioned."""
    state = notebook.metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    views = [o.data[WIDGET_VIEW]["model_id"] for o in _outputs(notebook) if WIDGET_VIEW in o.get("data", {})]
    order = dict.fromkeys([*views, *_reachable(views, state)])
    text = json.dumps(notebook, ensure_ascii=False)
    for number, old in enumerate(order):
        text = text.replace(old, f"widget{number:026d}")
    renamed = nbformat.from_dict(json.loads(text))
    if state:
        kept = renamed.metadata.widgets[WIDGET_STATE]
        kept["state"] = dict(sorted((k, v) for k, v in kept["state"].items() if k.startswith("widget0")))
    return renamed


def _outputs(notebook: Notebook) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def _reachable(ids: list[str], state: dict[str, Any]) -> list[str]:
    """The widgets that those named in `ids` hold, depth first."""
    found: list[str] = []
    waiting = list(reversed(ids))
    while waiting:
        model = waiting.pop()
        if model in found or model not in state:
            continue
        found.append(model)
        text = json.dumps(state[model])
        inside = [other for other in state if f"IPY_MODEL_{other}" in text]
        waiting += sorted(inside, key=text.index, reverse=True)
    return found


def save(notebook: Notebook, path: Path) -> None:
    """Write a notebook so that a crash leaves the old one."""
    nbformat.validate(notebook)
    with atomic_file(path) as part:
        part.write_text(nbformat.writes(notebook, version=4) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Command line: 0 = all stored, 1 = one failed (the others are run all the same), 2 = nothing to run."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_ref.teaching.execute",
        description="Run notebooks from a fresh kernel and store their outputs.",
        epilog="example: python -m specdec_ref.teaching.execute notebooks/01_the_memory_wall.ipynb",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="notebook, or folder of notebooks"
    )
    parser.add_argument(
        "--timeout", type=int, default=TIMEOUT, help="seconds for one cell (default: %(default)s)"
    )
    chosen = parser.parse_args(arguments)
    missing = [path for path in chosen.paths if not path.exists()]
    notebooks = list(dict.fromkeys(find_notebooks(chosen.paths)))
    if missing or not notebooks:
        what = f"{missing[0]} does not exist" if missing else "no notebook found"
        print(f"execute: {what}", file=sys.stderr)
        return 2
    failed = 0
    for path in notebooks:
        try:
            print(f"{path}: {execute(path, timeout=chosen.timeout):.0f} s", flush=True)
        except Exception as error:
            failed += 1
            print(f"{path}: not stored, a cell failed\n{error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
