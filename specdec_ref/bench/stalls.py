"""Runs that something else on the machine interrupted."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Stalls:
    """Notices runs that something else on the machine interrupted, so that they can be run again.

    Args:
        deadline: by `time.perf_counter`; nothing is repeated after it.

    Attributes:
        limit: a run is suspect where one target pass took this many times the median of its method's earlier runs.
        repeated: runs that were repeated; reported, because a benchmark may not choose among its results in silence.
    """

    limit = 2.0

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.repeated = 0
        self._paces: dict[str, list[float]] = defaultdict(list)

    def steady(self, method: str, run: Callable[[], tuple[T, float]]) -> T:
        """The result of `run`, which also returns its seconds per pass; the faster of two where the first one stalled."""
        result, pace = run()
        earlier = self._paces[method]
        slow = earlier and pace > self.limit * statistics.median(earlier)
        if slow and time.perf_counter() < self.deadline:
            self.repeated += 1
            again, second = run()
            if second < pace:
                result, pace = again, second
        earlier.append(pace)
        return result
