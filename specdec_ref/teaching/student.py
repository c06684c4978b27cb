"""Make the learner's and the teacher's copies of the notebooks; the source notebooks hold everything.

    python -m specdec_ref.teaching.student [--out DIR] [NOTEBOOK…]

Writes DIR/student (solutions removed, outputs cleared) and DIR/instructor (everything, solutions open). A solution is a cell
tagged `solution`. Both copies run top to bottom.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import nbformat

from specdec_ref.teaching.execute import clear, save
from specdec_ref.teaching.lint_notebooks import find_notebooks

SOLUTION = "solution"
HIDDEN = "hide-cell"

Notebook = Any


def student_copy(notebook: Notebook) -> Notebook:
    """A copy without solutions and outputs: a note says where a solution was."""
    made = clear(copy.deepcopy(notebook))
    made.cells = [_note(cell) if SOLUTION in cell.metadata.get("tags", []) else cell for cell in made.cells]
    return made


def instructor_copy(notebook: Notebook) -> Notebook:
    """A copy with outputs in which the solutions are open and marked."""
    made = copy.deepcopy(notebook)
    for cell in made.cells:
        if SOLUTION in cell.metadata.get("tags", []):
            cell.metadata["tags"] = [tag for tag in cell.metadata["tags"] if tag != HIDDEN]
            cell.metadata.pop("jupyter", None)
    return made


def _note(cell: Any) -> Any:
    note = nbformat.v4.new_markdown_cell(
        "*Your turn: write your answer in the exercise cell above and run the check again.*"
    )
    note["id"] = cell["id"]
    return note


def main(arguments: list[str] | None = None) -> int:
    """Command line: 0 = written, 2 = nothing to copy."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_ref.teaching.student",
        description="Make the learner's and the teacher's copies of the notebooks.",
        epilog="example: python -m specdec_ref.teaching.student --out build/workshop",
    )
    parser.add_argument(
        "paths", nargs="*", type=Path, default=[Path("notebooks")], metavar="PATH", help="notebook or folder"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("notebooks"), help="where to write (default: %(default)s)"
    )
    chosen = parser.parse_args(arguments)
    missing = [path for path in chosen.paths if not path.exists()]
    notebooks = find_notebooks(chosen.paths)
    if missing or not notebooks:
        what = f"{missing[0]} does not exist" if missing else "no notebook found"
        print(f"student: {what}", file=sys.stderr)
        return 2
    for path in notebooks:
        notebook = nbformat.read(path, as_version=4)
        save(student_copy(notebook), chosen.out / "student" / path.name)
        save(instructor_copy(notebook), chosen.out / "instructor" / path.name)
    print(f"student: {len(notebooks)} notebooks in {chosen.out / 'student'} and {chosen.out / 'instructor'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
