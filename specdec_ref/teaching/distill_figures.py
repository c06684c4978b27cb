"""What a distillation run's logs show: the drafts learning, and how often the target then accepts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

from specdec_ref.distill.progress import read_log
from specdec_ref.errors import CheckpointError
from specdec_ref.files import read_json
from specdec_ref.teaching.figures import BLUE, GREEN, INK, MARKERS, ORANGE, RED, STYLE

COLOURS = (BLUE, ORANGE, GREEN, RED)

LABELS = {"kl": "KL(p′ || q), nats", "alpha": "overlap Σ min(p, q)"}


def learning(run: Path, *, names: Mapping[str, str] | None = None) -> Figure:
    """Divergence and overlap of every draft over training, from `log_train.jsonl`; returned unshown.

    The overlap of two distributions is the probability that a token drafted from q is accepted (Leviathan et al., 2022,
    theorem 3.5), so the right-hand curve is the acceptance to come, on the text the draft trains on.

    Args:
        run: folder of the run's logs.
        names: label of each draft; default: its name in the run.

    Raises:
        CheckpointError: the log is missing or has no steps.
    """
    steps = read_log(run / "log_train.jsonl", "step")
    drafts = [name for name, value in (steps[-1] if steps else {}).items() if isinstance(value, dict)]
    if not drafts:
        raise CheckpointError("no training steps in this log", where=str(run / "log_train.jsonl"))
    with plt.rc_context(STYLE):
        figure, sides = plt.subplots(1, 2, figsize=(8.4, 3.2))
        for ax, (key, label) in zip(sides, LABELS.items(), strict=True):
            for marker, name in zip(MARKERS * len(drafts), drafts, strict=False):
                ax.plot(
                    [line["step"] for line in steps],
                    [line[name][key] for line in steps],
                    marker=marker,
                    markevery=max(1, len(steps) // 8),
                    markersize=4,
                    label=(names or {}).get(name, name),
                )
            ax.set(title=label, xlabel="optimiser step")
        sides[0].set_yscale("log")
        sides[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        sides[0].yaxis.set_major_formatter(ScalarFormatter())
        sides[0].yaxis.set_minor_locator(NullLocator())
        sides[1].set_ylim(0, 1)
        sides[0].legend()
        figure.tight_layout()
    return figure


def acceptance(run: Path, *, names: Mapping[str, str] | None = None) -> Figure:
    """Tokens per target pass by lookahead and by class of prompt, from `eval.json`; returned unshown.

    Args:
        run: folder of the run's results.
        names: label of each draft; default: its name in the run.

    Raises:
        CheckpointError: the file is missing or holds no drafts.
    """
    path = run / "eval.json"
    drafts: list[dict[str, Any]] = read_json(path).get("drafts", [])
    if not drafts:
        raise CheckpointError("no drafts were measured", where=str(path))
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), gridspec_kw={"width_ratios": (1, 1.3)})
        for index, draft in enumerate(drafts):
            name = (names or {}).get(draft["name"], draft["name"])
            for mode, dashes in (("greedy", "-"), ("t1", "--")):
                rows = {int(k): row for k, row in draft[mode].items()}
                low = [row["tau"] - row["ci"][0] for row in rows.values()]
                high = [row["ci"][1] - row["tau"] for row in rows.values()]
                left.errorbar(
                    list(rows),
                    [row["tau"] for row in rows.values()],
                    yerr=[[max(0.0, x) for x in low], [max(0.0, x) for x in high]],
                    marker=MARKERS[index % len(MARKERS)],
                    markersize=4,
                    linestyle=dashes,
                    capsize=2,
                    color=COLOURS[index % len(COLOURS)],
                    label=f"{name}, {'greedy' if mode == 'greedy' else 'T = 1'}",
                )
        left.set(title="tau by lookahead (95 % intervals)", xlabel="K", ylabel="tokens per target pass")
        left.legend(fontsize=8)
        classes = sorted(drafts[0]["classes"])
        height = 0.8 / len(drafts)
        for index, draft in enumerate(drafts):
            right.barh(
                [place + index * height for place in range(len(classes))],
                [draft["classes"][kind] for kind in classes],
                height=height,
                hatch=("", "///", "...")[index % 3],
                edgecolor="white",
                label=(names or {}).get(draft["name"], draft["name"]),
            )
        right.set_yticks([place + height * (len(drafts) - 1) / 2 for place in range(len(classes))], classes)
        right.invert_yaxis()
        right.axvline(1, color=INK, linewidth=1, linestyle="--")
        right.grid(False, axis="y")
        right.set(title="greedy, by class (dashed: plain decoding)", xlabel="tokens per target pass")
        right.legend(fontsize=8)
        figure.tight_layout()
    return figure


def frontier(drafts: Sequence[Mapping[str, Any]], v4: float) -> Figure:
    """Acceptance against cost at K = 4, with lines of equal speed-up tau / (4 c + v(4)); returned unshown.

    Args:
        drafts: the rows of `specdec bench drafts`.
        v4: cost of a target pass over four drafted tokens, in target steps.
    """
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(6.6, 3.8))
        right = 1.35 * max(draft["c_measured"] for draft in drafts)
        top = 1.15 * max(draft["tau_greedy_k4"] for draft in drafts)
        for speed in (1.0, 1.5, 2.0):
            ax.plot(
                [0, right], [speed * v4, speed * (4 * right + v4)], color=INK, linewidth=0.8, linestyle="--"
            )
            if speed * v4 < top:
                ax.annotate(f"{speed:g}x", (0.002, speed * v4), xytext=(0, 3), textcoords="offset points")
        for index, draft in enumerate(drafts):
            for key, low_high, filled in (("tau_greedy_k4", "greedy", True), ("tau_t1_k4", "t1", False)):
                low, high = draft["ci"][low_high] or (draft[key], draft[key])
                ax.errorbar(
                    draft["c_measured"],
                    draft[key],
                    yerr=[[max(0.0, draft[key] - low)], [max(0.0, high - draft[key])]],
                    marker=MARKERS[index % len(MARKERS)],
                    color=COLOURS[index % len(COLOURS)],
                    markerfacecolor=None if filled else "white",
                    capsize=3,
                    linestyle="none",
                    label=f"{draft['name']}, {'greedy' if filled else 'T = 1'}",
                )
        ax.set(xlim=(-0.004, right), ylim=(0.9, top), xlabel="c: draft step in target steps, measured")
        ax.set(ylabel="tau: tokens per target pass")
        ax.set_title(f"K = 4; dashed: equal speed at v(4) = {v4:.2f}")
        ax.legend(fontsize=8, loc="lower right")
        figure.tight_layout()
    return figure
