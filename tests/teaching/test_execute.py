"""Executed notebooks are the same wherever they ran; a failed run stores nothing; copies lose only what they should."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

from specdec_ref.teaching import execute, student
from specdec_ref.teaching.lint_notebooks import lint

Notebook = Any
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"
)


def stored(cells: list[Any], folder: Path, name: str = "lesson.ipynb", **metadata: Any) -> Path:
    path = folder / name
    nbformat.write(v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def solution(source: str) -> Any:
    cell = v4.new_code_cell(source)
    cell.metadata = nbformat.from_dict(
        {"tags": ["solution", "hide-cell"], "jupyter": {"source_hidden": True}}
    )
    return cell


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A notebook with a widget, a solution and machine-made metadata, executed once."""
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "here.txt").write_text("beside", encoding="utf-8")
    cells = [
        v4.new_markdown_cell("# A lesson"),
        v4.new_code_cell("print(open('here.txt').read())\nprint('two')", execution_count=9),
        v4.new_code_cell(
            "import ipywidgets\nipywidgets.HBox([ipywidgets.IntSlider(3), ipywidgets.Label('x')])"
        ),
        solution("print('a | b')\nprint('c d')\nprint('e f')"),
    ]
    cells[1].metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    path = stored(cells, folder, kernelspec={"name": "my-env", "display_name": "Mine"}, author="someone")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the kernel client's own
        assert execute.main([str(path)]) == 0
    return path


def test_executed_notebook_is_stored_clean(lesson: Path) -> None:
    notebook = nbformat.read(lesson, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3]
    assert code[0].outputs[0].text == "beside\ntwo\n", "its own folder is the working directory"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "widgets"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert "execution" not in code[0].metadata
    assert lint(lesson) == []


def test_widget_ids_are_numbers_in_order(lesson: Path) -> None:
    notebook = nbformat.read(lesson, as_version=4)
    state = notebook.metadata["widgets"][execute.WIDGET_STATE]["state"]
    view = next(
        o.data[execute.WIDGET_VIEW]
        for o in execute._outputs(notebook)
        if execute.WIDGET_VIEW in o.get("data", {})
    )
    assert view["model_id"] == f"widget{0:026d}"
    assert sorted(state) == [f"widget{i:026d}" for i in range(len(state))]
    held = state[view["model_id"]]["state"]["children"]
    assert all(child.removeprefix("IPY_MODEL_") in state for child in held)


def test_same_run_gives_the_same_bytes(lesson: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(lesson, as_version=4)
    execute.save(execute.normalise(notebook), tmp_path / "again.ipynb")
    assert (tmp_path / "again.ipynb").read_bytes() == lesson.read_bytes()


def test_failed_run_leaves_the_stored_notebook(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = stored(
        [v4.new_code_cell("print(1)"), v4.new_code_cell("raise ValueError('no such luck')")], tmp_path
    )
    before = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert execute.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["lesson.ipynb"]
    assert "no such luck" in capfd.readouterr().err


@pytest.mark.parametrize("main", [execute.main, student.main])
def test_nothing_to_run_is_bad_use(main: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing")]) == 2
    assert main([str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_split_streams_are_joined() -> None:
    cell = v4.new_code_cell(
        "x", outputs=[v4.new_output("stream", text="a\n"), v4.new_output("stream", text="b\n")]
    )
    joined = execute.normalise(v4.new_notebook(cells=[cell])).cells[0].outputs
    assert [output.text for output in joined] == ["a\nb\n"]


def test_copies_for_learner_and_teacher(lesson: Path, tmp_path: Path) -> None:
    before = lesson.read_bytes()
    assert student.main([str(lesson), "--out", str(tmp_path)]) == 0
    learner = json.loads((tmp_path / "student" / lesson.name).read_text(encoding="utf-8"))
    teacher = json.loads((tmp_path / "instructor" / lesson.name).read_text(encoding="utf-8"))
    assert "a | b" not in json.dumps(learner)
    assert len(learner["cells"]) == len(teacher["cells"])
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in learner["cells"])
    assert "widgets" not in learner["metadata"]
    solved = next(cell for cell in teacher["cells"] if "solution" in cell["metadata"].get("tags", []))
    assert "hide-cell" not in solved["metadata"]["tags"] and "jupyter" not in solved["metadata"]
    assert solved["outputs"]
    assert lesson.read_bytes() == before, "the source is never edited"
