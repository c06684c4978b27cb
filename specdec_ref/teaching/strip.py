"""A trace as a strip of tokens, one row per round: as a picture and as text that says the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from specdec_ref.teaching.figures import BLUE, GREEN, INK, ORANGE, RED, STYLE
from specdec_ref.trace import Round

Name = Callable[[int], str]

_LOOKS = {
    "accepted": {"facecolor": "#d5ecda", "edgecolor": GREEN},
    "rejected": {"facecolor": "#fbe3e1", "edgecolor": RED, "hatch": "////"},
    "correction": {"facecolor": "#fdeedd", "edgecolor": ORANGE, "linewidth": 2},
    "bonus": {"facecolor": "#dcecf5", "edgecolor": BLUE, "linewidth": 2},
    "plain": {"facecolor": "white", "edgecolor": INK},
}
_MARKS = {"accepted": "+", "rejected": "-", "correction": "=", "bonus": "=", "plain": "="}


def pieces(done: Round) -> list[tuple[int, str]]:
    """A round's tokens in order, each with what became of it: accepted, rejected, correction, bonus or plain."""
    drafted = [
        (token, "accepted" if i < done.accepted else "rejected") for i, token in enumerate(done.drafted)
    ]
    return drafted if done.next is None else [*drafted, (done.next, done.kind)]


def rows(trace: Sequence[Round], name: Name) -> str:
    """One line per round: `+` accepted, `-` rejected, `=` the target's own token and its kind."""
    lines = []
    for number, done in enumerate(trace, start=1):
        words = [f"{_MARKS[what]}{_show(name(token))}" for token, what in pieces(done)]
        lines.append(f"{number:2}  n={done.accepted}/{len(done.drafted)}  {' '.join(words)}  ({done.kind})")
    return "\n".join(lines)


def draw(trace: Sequence[Round], name: Name, title: str = "") -> Axes:
    """Draw the strip and return its axes, unshown."""
    widest = max((len(_show(name(token))) for done in trace for token, _ in pieces(done)), default=1)
    step = 0.1 * max(widest, 6) + 0.15
    most = max((len(pieces(done)) for done in trace), default=1)
    used: dict[str, None] = {}
    with plt.rc_context(STYLE):
        _, ax = plt.subplots(figsize=(min(9.0, 0.9 * step * most + 1.2), 0.32 * len(trace) + 0.9))
        for y, done in enumerate(trace):
            ax.text(-0.15, y, str(y + 1), ha="right", va="center", fontsize=8)
            for slot, (token, what) in enumerate(pieces(done)):
                used[what] = None
                ax.add_patch(plt.Rectangle((slot * step, y - 0.38), step * 0.94, 0.76, **_LOOKS[what]))  # type: ignore[arg-type]
                label = {"backgroundcolor": "#fbe3e1"} if what == "rejected" else {}
                word = _show(name(token)).replace("$", r"\$")
                ax.text((slot + 0.47) * step, y, word, ha="center", va="center", fontsize=8, **label)  # type: ignore[arg-type]
        ax.set(xlim=(-0.4, most * step), ylim=(len(trace) - 0.4, -0.6), title=title)
        ax.set_axis_off()
        legend = [Patch(label=what, **_LOOKS[what]) for what in _LOOKS if what in used]  # type: ignore[arg-type]
        ax.legend(handles=legend, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=5, fontsize=8)
    return ax


def _show(word: str) -> str:
    return word.replace("\n", "⏎").replace(" ", "·")
