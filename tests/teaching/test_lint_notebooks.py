"""Each rule of the notebook linter refuses one planted fault, and a clean notebook passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

from specdec_ref.teaching import lint_notebooks

Notebook = Any
PNG = "iVBORw0KGgo/tmp/AAAA"  # a path inside picture data is no path
WIDGET = "application/vnd.jupyter.widget-view+json"


def printed(text: str, name: str = "stdout") -> Any:
    return v4.new_output("stream", name=name, text=text)


def shown(**data: str) -> Any:
    return v4.new_output(
        "display_data", data={kind.replace("__", "/"): content for kind, content in data.items()}
    )


def widget_output() -> Any:
    view = {WIDGET: {"model_id": "0", "version_major": 2, "version_minor": 0}, "text/plain": "slider"}
    return v4.new_output("display_data", data=view)


def clean_notebook() -> Notebook:
    """A notebook that uses everything the rules allow."""
    cells = [
        v4.new_markdown_cell("# A lesson\nIt may name /home/you in prose."),
        v4.new_code_cell("print('tokens:', 12)", outputs=[printed("tokens: 12\nlogit 0.123\np = 0.12345\n")]),
        v4.new_code_cell(
            "# NBVAL_IGNORE_OUTPUT\n# timings differ between machines\nprint('3 ms')",
            outputs=[printed("3 ms\n")],
        ),
        v4.new_code_cell("show(0x1F)", outputs=[shown(image__png=PNG, text__plain="a figure of 0x1F")]),
        v4.new_code_cell("slider", outputs=[widget_output()]),
        v4.new_code_cell("table", outputs=[shown(text__html="<table><tr><td>1</td></tr></table>")]),
    ]
    for count, cell in enumerate(cells[1:], 1):
        cell.execution_count = count
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"},
        "language_info": {"name": "python"},
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}}},
    }
    return v4.new_notebook(cells=cells, metadata=metadata)


def stored(notebook: Notebook, folder: Path, name: str = "lesson.ipynb") -> Path:
    path = folder / name
    nbformat.write(notebook, path)
    return path


def never_run(nb: Notebook) -> None:
    nb.cells[-1].execution_count = None


def out_of_order(nb: Notebook) -> None:
    nb.cells[2].execution_count = 7


def not_from_one(nb: Notebook) -> None:
    for cell in nb.cells[1:]:
        cell.execution_count += 1


def stored_error(nb: Notebook) -> None:
    nb.cells[1].outputs = [v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]


def stored_stderr(nb: Notebook) -> None:
    nb.cells[1].outputs = [printed("a warning\n", name="stderr")]


def output(text: str) -> Callable[[Notebook], None]:
    def fault(nb: Notebook) -> None:
        nb.cells[1].outputs = [printed(text)]

    return fault


def path_in_html(nb: Notebook) -> None:
    nb.cells[1].outputs = [shown(text__html="<b>/home/someone/model</b>")]


def logit_in_html_table(nb: Notebook) -> None:
    nb.cells[1].outputs = [shown(text__html="<table><th>logit</th>\n<td>1.23456</td></table>")]


def ignored_without_reason(nb: Notebook) -> None:
    nb.cells[2].source = "# NBVAL_IGNORE_OUTPUT\nprint('3 ms')"


def ignored_by_tag_without_reason(nb: Notebook) -> None:
    nb.cells[2].source = "print('3 ms')"
    nb.cells[2].metadata["tags"] = ["nbval-ignore-output"]


def ignored_too_often(nb: Notebook) -> None:
    nb.cells[1].source = "# NBVAL_IGNORE_OUTPUT\n# timings differ between machines\nprint('4 ms')"


def mark_with_text(nb: Notebook) -> None:
    nb.cells[2].source = "# NBVAL_IGNORE_OUTPUT: timings differ between machines\nprint('3 ms')"


def skipped(nb: Notebook) -> None:
    nb.cells[1].source = "# NBVAL_SKIP\nprint('tokens:', 12)"


def one_long_cell(nb: Notebook) -> None:
    nb.cells[1].source = "x = 1\n" * 41


def all_longish_cells(nb: Notebook) -> None:
    for cell in nb.cells[3:]:
        cell.source = "x = 1\n" * 9


def other_kernel(nb: Notebook) -> None:
    nb.metadata.kernelspec = {"name": "my-venv", "display_name": "my-venv", "language": "python"}


def kernel_with_own_name(nb: Notebook) -> None:
    nb.metadata.kernelspec.display_name = "specdec (.venv)"


def language_version(nb: Notebook) -> None:
    nb.metadata.language_info["version"] = "3.11.7"


def widget_without_twin(nb: Notebook) -> None:
    nb.cells[5].outputs = [printed("moved\n")]


def widget_state_without_widget(nb: Notebook) -> None:
    nb.cells[4].outputs = []


FAULTS = [
    (never_run, 6, "never run"),
    (out_of_order, 3, "execution count is 7, expected 2"),
    (not_from_one, 2, "execution count is 2, expected 1"),
    (stored_error, 2, "error (ValueError)"),
    (stored_stderr, 2, "stderr"),
    (output("saved to /home/someone/x\n"), 2, "absolute path (/home/)"),
    (output("saved to '/root/x'\n"), 2, "absolute path (/root/)"),
    (output("saved to /Users/someone/x\n"), 2, "absolute path (/Users/)"),
    (output("saved to file:///tmp/x\n"), 2, "absolute path (/tmp/)"),
    (output("saved to C:\\kit\n"), 2, "absolute path (C:\\)"),
    (path_in_html, 2, "absolute path (/home/)"),
    (output("<Model object at 0x7f3a2c10>\n"), 2, "memory address"),
    (output("top logit: 12.3456\n"), 2, "more than 3 decimals"),
    (logit_in_html_table, 2, "more than 3 decimals"),
    (ignored_without_reason, 3, "without a reason"),
    (ignored_by_tag_without_reason, 3, "without a reason"),
    (ignored_too_often, 3, "2 of 5 code cells ignore their output, 1 may"),
    (mark_with_text, 3, "nbval does not see NBVAL_IGNORE_OUTPUT"),
    (skipped, 2, "skipped by nbval"),
    (one_long_cell, 2, "41 lines, 40 are allowed"),
    (all_longish_cells, 0, "median code cell has 9 lines, 8 are allowed"),
    (other_kernel, 0, "kernelspec is"),
    (kernel_with_own_name, 0, "kernel is shown as"),
    (language_version, 0, "language_info holds ['name', 'version']"),
    (widget_without_twin, 5, "without a static twin"),
    (widget_state_without_widget, 0, "no cell shows a widget"),
]


def test_clean_notebook_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(clean_notebook(), tmp_path)
    assert lint_notebooks.lint(path) == []
    assert lint_notebooks.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "lint_notebooks: 1 notebook, no problems\n"


@pytest.mark.parametrize(("fault", "cell", "what"), FAULTS, ids=[what for _, _, what in FAULTS])
def test_planted_fault_is_the_one_problem_found(
    fault: Callable[[Notebook], None],
    cell: int,
    what: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    notebook = clean_notebook()
    fault(notebook)
    path = stored(notebook, tmp_path)
    (problem,) = lint_notebooks.lint(path)
    assert problem.cell == cell
    assert what in problem.what
    assert lint_notebooks.main([str(path)]) == 1
    where = f"cell {cell}" if cell else "notebook"
    assert capsys.readouterr().out == f"{path}:{where}: {problem.what} — {problem.fix}\n"


def test_home_folder_of_any_shape_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/export/people/ada")
    notebook = clean_notebook()
    notebook.cells[1].outputs = [printed("cached in /export/people/ada/kit\n")]
    (problem,) = lint_notebooks.lint(stored(notebook, tmp_path))
    assert problem.what == "output holds an absolute path (the home folder)"


def test_every_rule_has_a_planted_fault(tmp_path: Path) -> None:
    fired = set()
    for fault, _, _ in FAULTS:
        notebook = clean_notebook()
        fault(notebook)
        fired |= {rule for rule in lint_notebooks.RULES if list(rule(notebook))}
    assert fired == set(lint_notebooks.RULES)


def test_one_ignored_cell_in_twenty_is_allowed() -> None:
    source = "# NBVAL_IGNORE_OUTPUT\n# timings differ between machines\nprint(1)"
    cells = [v4.new_code_cell(source if i < 2 else "print(1)", execution_count=i + 1) for i in range(40)]
    notebook = v4.new_notebook(cells=cells)
    assert list(lint_notebooks.check_ignored_outputs(notebook)) == []
    cells.pop()
    assert len(list(lint_notebooks.check_ignored_outputs(notebook))) == 1


def test_broken_file_is_one_problem(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    path.write_text("{", encoding="utf-8")
    (problem,) = lint_notebooks.lint(path)
    assert "not a valid notebook" in problem.what


def test_generated_copies_are_left_out(tmp_path: Path) -> None:
    for folder in (".", "student", "instructor", ".ipynb_checkpoints"):
        (tmp_path / folder).mkdir(exist_ok=True)
        stored(clean_notebook(), tmp_path / folder)
    assert lint_notebooks.find_notebooks([tmp_path]) == [tmp_path / "lesson.ipynb"]


def test_nothing_to_check_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint_notebooks.main([str(tmp_path)]) == 2
    assert lint_notebooks.main([str(tmp_path / "missing")]) == 2
    assert "no notebook found" in capsys.readouterr().err
