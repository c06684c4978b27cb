"""The first cell of every notebook: one place where warnings are silenced and defaults are set."""

from __future__ import annotations

import os
import random

import torch

from specdec_ref.quiet import silence_libraries


def setup() -> None:
    """Make a notebook quiet and repeatable; prints nothing and may be called again.

    Warnings that come from how libraries are built rather than from what the learner wrote are silenced here, because
    stored outputs are compared and stderr is part of them. Gradients are off, seeds are fixed, torch uses the physical
    cores, and figures share one plain style.
    """
    silence_libraries()
    torch.set_grad_enabled(False)
    torch.set_printoptions(precision=3, sci_mode=False)
    torch.set_num_threads(_threads())
    torch.manual_seed(0)
    random.seed(0)
    _figures()


def _threads() -> int:
    """`OMP_NUM_THREADS`, or one per physical core: decoding waits for memory, so a second one per core is in the way."""
    import psutil

    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def _figures() -> None:
    import matplotlib.pyplot as plt

    from specdec_ref.teaching.figures import STYLE

    plt.rcParams.update(STYLE)
