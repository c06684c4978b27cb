"""Check the stored notebooks for what nbval cannot see.

    python -m specdec_ref.teaching.lint_notebooks notebooks

nbval runs a notebook and compares outputs; it does not notice a cell that was stored without being run, a path of the
author's machine, or too many cells whose output is ignored. Each rule here is one function that yields problems; each
problem prints as `file:cell N: what — how to fix`, N counting all cells from 1.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

MEDIAN_LINES = 8
MAX_LINES = 40
IGNORED_SHARE = 0.05
GENERATED = {"student", "instructor", ".ipynb_checkpoints"}

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
ABSOLUTE_PATH = re.compile(r"(?<![\w.])(?:/(?:home|root|Users|tmp|var/folders)/|[A-Z]:\\)")
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
EMBEDDED_DATA = re.compile(r"base64,[A-Za-z0-9+/=\s]+")
LOGIT = re.compile(r"logit", re.IGNORECASE)
LONG_FLOAT = re.compile(r"\d\.\d{4,}")
IGNORE_MARKS = {"NBVAL_IGNORE_OUTPUT", "PYTEST_VALIDATE_IGNORE_OUTPUT"}
ANY_MARK = re.compile(r"NBVAL_[A-Z_]+|PYTEST_VALIDATE_IGNORE_OUTPUT")


class Problem(NamedTuple):
    """One fault: where (0 = the notebook as a whole), what is wrong, and how to fix it."""

    cell: int
    what: str
    fix: str

    def line(self, path: Path) -> str:
        """The problem as printed."""
        where = f"cell {self.cell}" if self.cell else "notebook"
        return f"{path}:{where}: {self.what} — {self.fix}"


class CodeCell(NamedTuple):
    """A code cell with its place in the notebook, counted from 1 over all cells."""

    number: int
    node: Any

    @property
    def lines(self) -> list[str]:
        """The source lines that are not blank."""
        return [line.strip() for line in self.node.source.splitlines() if line.strip()]

    @property
    def tags(self) -> list[str]:
        """The cell's tags."""
        return list(self.node.metadata.get("tags", []))

    def texts(self) -> Iterator[str]:
        """Everything textual that the outputs show; pictures and embedded binary data are left out."""
        for output in self.node.outputs:
            if output.output_type == "stream":
                yield output.text
            for kind, content in output.get("data", {}).items():
                if kind.startswith("text/") or kind == "image/svg+xml":
                    yield EMBEDDED_DATA.sub("", content)


Notebook = Any


def code_cells(notebook: Notebook) -> list[CodeCell]:
    """The code cells, numbered."""
    return [CodeCell(i, cell) for i, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]


def check_was_run(notebook: Notebook) -> Iterator[Problem]:
    """Every code cell was run, first to last, in one go (nbval passes a cell without a count unseen)."""
    in_order = True
    for expected, cell in enumerate(code_cells(notebook), 1):
        count = cell.node.execution_count
        if count is None:
            yield Problem(cell.number, "code cell was never run", "run `make refresh`, or delete the cell")
        elif count != expected and in_order:
            in_order = False  # the first one says it all
            yield Problem(
                cell.number,
                f"execution count is {count}, expected {expected}",
                "run the notebook from a fresh kernel, top to bottom (`make refresh`)",
            )


def check_no_errors(notebook: Notebook) -> Iterator[Problem]:
    """No stored exceptions."""
    for cell in code_cells(notebook):
        for output in cell.node.outputs:
            if output.output_type == "error":
                yield Problem(
                    cell.number,
                    f"stored output is an error ({output.ename})",
                    "catch it and print its message",
                )


def check_no_stderr(notebook: Notebook) -> Iterator[Problem]:
    """No stored stderr: warnings and progress bars differ from machine to machine."""
    for cell in code_cells(notebook):
        if any(output.output_type == "stream" and output.name == "stderr" for output in cell.node.outputs):
            yield Problem(
                cell.number,
                "output holds stderr text",
                "silence the warning in the notebook set-up module, or print to stdout",
            )


def check_no_paths(notebook: Notebook) -> Iterator[Problem]:
    """No absolute paths, and so no user names, in outputs."""
    home = os.path.expanduser("~")
    for cell in code_cells(notebook):
        for text in cell.texts():
            found = ABSOLUTE_PATH.search(text)
            if found or (len(home) > 1 and home in text):
                what = found.group() if found else "the home folder"
                yield Problem(
                    cell.number,
                    f"output holds an absolute path ({what})",
                    "print the file name or a relative path",
                )
                break


def check_no_addresses(notebook: Notebook) -> Iterator[Problem]:
    """No default reprs: their memory addresses never match again."""
    for cell in code_cells(notebook):
        if any(ADDRESS.search(text) for text in cell.texts()):
            yield Problem(
                cell.number,
                "output holds a memory address (<… at 0x…>)",
                "end the cell with `_ = …`, or print a value",
            )


def check_logit_digits(notebook: Notebook) -> Iterator[Problem]:
    """No logit with more digits than survive another processor."""
    for cell in code_cells(notebook):
        pieces = [piece for text in cell.texts() for piece in _pieces(text)]
        if any(LOGIT.search(piece) and LONG_FLOAT.search(piece) for piece in pieces):
            yield Problem(
                cell.number,
                "output shows a logit with more than 3 decimals",
                "round it to 3 decimals or fewer",
            )


def _pieces(text: str) -> list[str]:
    """What belongs together in an output: a line, or an HTML table, whose heading names what its numbers are."""
    return text.split("</table>") if "<table" in text else text.splitlines()


def check_ignored_outputs(notebook: Notebook) -> Iterator[Problem]:
    """Few cells ignore their output; each says why; none is skipped altogether; no mark is misspelt."""
    cells = code_cells(notebook)
    ignoring = []
    for cell in cells:
        comments = [line.lstrip("#").strip() for line in cell.lines if line.startswith("#")]
        marks = [comment for comment in comments if comment in IGNORE_MARKS]
        for comment in comments:
            found = ANY_MARK.search(comment)
            if found and comment != found.group():
                yield Problem(
                    cell.number,
                    f"nbval does not see {found.group()} with other text on its line",
                    "put the mark alone on its line and the reason on the next",
                )
        skipped = any("NBVAL_SKIP" in comment for comment in comments) or "nbval-skip" in cell.tags
        if skipped:
            yield Problem(
                cell.number,
                "cell is skipped by nbval",
                "let it run; mark it NBVAL_IGNORE_OUTPUT if its output varies",
            )
        if marks or "nbval-ignore-output" in cell.tags:
            ignoring.append(cell)
            if not _gives_reason(cell):
                yield Problem(
                    cell.number,
                    "NBVAL_IGNORE_OUTPUT without a reason",
                    "add a comment beside the mark, such as `# timings differ between machines`",
                )
    allowed = max(1, int(IGNORED_SHARE * len(cells)))
    for cell in ignoring[allowed:]:
        yield Problem(
            cell.number,
            f"{len(ignoring)} of {len(cells)} code cells ignore their output, {allowed} may",
            "print something that does not vary, and assert on the rest",
        )


def _gives_reason(cell: CodeCell) -> bool:
    """Whether a comment of three words or more stands beside the mark (or first in the cell, where a tag marks it)."""
    lines = cell.lines
    places = [
        i for i, line in enumerate(lines) if line.startswith("#") and line.lstrip("#").strip() in IGNORE_MARKS
    ]
    beside = [j for i in places for j in (i - 1, i + 1)] if places else [0]
    return any(
        0 <= j < len(lines) and lines[j].startswith("#") and len(lines[j].lstrip("#").split()) >= 3
        for j in beside
    )


def check_cell_length(notebook: Notebook) -> Iterator[Problem]:
    """Short cells: one step each. Blank lines do not count."""
    cells = code_cells(notebook)
    lengths = [len(cell.lines) for cell in cells]
    for cell, length in zip(cells, lengths, strict=True):
        if length > MAX_LINES:
            yield Problem(
                cell.number,
                f"code cell has {length} lines, {MAX_LINES} are allowed",
                "split it, or move code to a module",
            )
    if lengths and statistics.median(lengths) > MEDIAN_LINES:
        yield Problem(
            0,
            f"median code cell has {statistics.median(lengths):g} lines, {MEDIAN_LINES} are allowed",
            "split the longer cells",
        )


def check_metadata(notebook: Notebook) -> Iterator[Problem]:
    """Kernel metadata that is the same on every machine."""
    kernel = dict(notebook.metadata.get("kernelspec", {}))
    if kernel.get("name") != "python3" or not set(kernel) <= {"name", "display_name", "language"}:
        yield Problem(
            0, f"kernelspec is {kernel}", 'set it to {"name": "python3", "display_name": "Python 3"}'
        )
    elif not str(kernel.get("display_name", "Python 3")).startswith("Python 3"):
        yield Problem(0, f"kernel is shown as {kernel['display_name']!r}", 'set display_name to "Python 3"')
    language = dict(notebook.metadata.get("language_info", {"name": "python"}))
    if language != {"name": "python"}:
        yield Problem(0, f"language_info holds {sorted(language)}", 'reduce it to {"name": "python"}')


def check_widgets(notebook: Notebook) -> Iterator[Problem]:
    """Each widget has a static twin, a picture or a table, in its own cell or in the next code cell."""
    cells = code_cells(notebook)
    shows_widget = [
        any(WIDGET_VIEW in output.get("data", {}) for output in cell.node.outputs) for cell in cells
    ]
    for i, cell in enumerate(cells):
        if shows_widget[i] and not any(
            _is_static(output) for twin in cells[i : i + 2] for output in twin.node.outputs
        ):
            yield Problem(
                cell.number,
                "widget without a static twin",
                "show the same picture or table without the widget, here or in the next code cell",
            )
    if "widgets" in notebook.metadata and not any(shows_widget):
        yield Problem(0, "widget state is stored, but no cell shows a widget", "run `make refresh`")


def _is_static(output: Any) -> bool:
    """Whether an output is a picture or a table that shows without a kernel."""
    data = output.get("data", {})
    if any(kind.startswith("image/") for kind in data):
        return True
    if "<table" in data.get("text/html", "") or "\n|" in data.get("text/markdown", ""):
        return True
    printed = output.text if output.output_type == "stream" else ""
    return len([line for line in printed.splitlines() if len(line.split()) >= 2]) >= 3


RULES = [
    check_was_run,
    check_no_errors,
    check_no_stderr,
    check_no_paths,
    check_no_addresses,
    check_logit_digits,
    check_ignored_outputs,
    check_cell_length,
    check_metadata,
    check_widgets,
]


def lint(path: Path) -> list[Problem]:
    """All problems of one stored notebook, in cell order."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return [
            Problem(
                0, f"not a valid notebook ({reason})", "restore it from git, or save it again in JupyterLab"
            )
        ]
    return sorted((problem for rule in RULES for problem in rule(notebook)), key=lambda problem: problem.cell)


def find_notebooks(paths: list[Path]) -> list[Path]:
    """The notebooks named by `paths`; folders are searched, generated copies left out."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = path.rglob("*.ipynb")
            found += sorted(p for p in inside if not GENERATED & set(p.relative_to(path).parts))
        else:
            found.append(path)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Command line: print every problem; 0 = none, 1 = some, 2 = nothing to check."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_ref.teaching.lint_notebooks",
        description="Check stored notebooks for what nbval cannot see.",
        epilog="example: python -m specdec_ref.teaching.lint_notebooks notebooks",
    )
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="notebook, or folder of notebooks"
    )
    paths = parser.parse_args(arguments).paths
    missing = [path for path in paths if not path.exists()]
    notebooks = find_notebooks(paths)
    if missing or not notebooks:
        what = f"{missing[0]} does not exist" if missing else "no notebook found"
        print(f"lint_notebooks: {what}", file=sys.stderr)
        return 2
    problems = [problem.line(path) for path in notebooks for problem in lint(path)]
    if problems:
        print(*problems, sep="\n")
    else:
        print(f"lint_notebooks: {len(notebooks)} notebook{'s' * (len(notebooks) != 1)}, no problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
