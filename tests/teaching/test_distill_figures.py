"""The figures of distillation show what the logs say."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from specdec_ref import paths
from specdec_ref.distill.progress import read_log
from specdec_ref.teaching.distill_figures import acceptance, learning
from tests.helpers.errors import error_of

RUN = paths.assets() / "results" / "distill_h200"


def test_learning_curves_are_the_logs_values() -> None:
    figure = learning(RUN, names={"main": "draft-320x4"})
    steps = read_log(RUN / "log_train.jsonl", "step")
    kl, alpha = figure.axes
    assert [line.get_label() for line in kl.lines] == ["draft-320x4", "small"]
    assert list(kl.lines[0].get_xdata()) == [line["step"] for line in steps]
    assert list(kl.lines[1].get_ydata()) == [line["small"]["kl"] for line in steps]
    assert list(alpha.lines[0].get_ydata()) == [line["main"]["alpha"] for line in steps]
    plt.close(figure)


def test_acceptance_figure_shows_every_draft_class_and_lookahead() -> None:
    figure = acceptance(RUN)
    report = json.loads((RUN / "eval.json").read_text())
    by_k, by_class = figure.axes
    drafts = report["drafts"]
    assert len(by_k.containers) == 2 * len(drafts)
    drawn = by_k.containers[0].lines[0]
    assert list(drawn.get_ydata()) == [row["tau"] for row in drafts[0]["greedy"].values()]
    assert [text.get_text() for text in by_class.get_yticklabels()] == sorted(drafts[0]["classes"])
    widths = [patch.get_width() for patch in by_class.containers[1]]
    assert widths == [drafts[1]["classes"][kind] for kind in sorted(drafts[1]["classes"])]
    plt.close(figure)


def test_a_resumed_log_counts_each_step_once_and_a_torn_line_not_at_all(tmp_path: Path) -> None:
    lines = [
        {"event": "step", "step": s, "loss": loss} for s, loss in ((1, 3.0), (2, 2.0), (2, 1.5), (3, 1.0))
    ]
    log = tmp_path / "log_train.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"event": "st')
    assert [(x["step"], x["loss"]) for x in read_log(log, "step")] == [(1, 3.0), (2, 1.5), (3, 1.0)]
    assert "no training steps" in error_of(lambda: learning(tmp_path))


@pytest.mark.parametrize("content", [None, "nothing\n", '{"a": 1}\n', "[1]\n"])
def test_other_files_are_refused(tmp_path: Path, content: str | None) -> None:
    log = tmp_path / "log_train.jsonl"
    if content is not None:
        log.write_text(content)
    assert "not a log" in error_of(lambda: learning(tmp_path))
    assert "eval.json" in error_of(lambda: acceptance(tmp_path))
