"""How far a training run is, agreed between processes: by steps, or by the main process's wall clock."""

from __future__ import annotations

import time
from typing import Any

import torch

from specdec_ref.distill.config import TrainConfig


class Clock:
    """Progress through the schedule, and when this command has to stop or save.

    Reading the main process's clock waits for the device, so it is read every `every` steps and extrapolated between.

    Args:
        config: length of the schedule.
        elapsed: training seconds of earlier commands.
        limit: seconds after which this command stops (0: none).
        began: `time.perf_counter()` when the command started.
    """

    def __init__(
        self, config: TrainConfig, elapsed: float, limit: float, began: float, every: int = 10
    ) -> None:
        self.config, self.limit, self.began, self.every = config, limit, began, every
        self.elapsed, self._before = elapsed, elapsed
        self._started: float | None = None
        self._since, self._pace = 0, 0.0
        self._saved = time.perf_counter()
        self._steps = 0

    def progress(self, step: int) -> float:
        """Share of the schedule that is behind before step number `step`."""
        if self.config.steps:
            return step / self.config.steps
        ahead = (self._steps - self._since) * self._pace
        return min(1.0, (self.elapsed + ahead) / (60 * self.config.minutes))

    def tick(self, accelerator: Any) -> tuple[bool, bool]:
        """Call after every step; returns (stop now, save now), the same on every process."""
        self._steps += 1
        if self._started is None:  # the first step compiles: that is not training time
            _ = accelerator.gather(torch.zeros(1, device=accelerator.device)).tolist()
            self._started, self._since = time.perf_counter(), 1
            return False, False
        if self._steps % self.every:
            return False, False
        from accelerate.utils import broadcast

        now = time.perf_counter()
        save = now - self._saved >= self.config.checkpoint_seconds
        stop = bool(self.limit) and now - self.began >= self.limit
        state = torch.tensor(
            [now - self._started, float(save), float(stop)], dtype=torch.float64, device=accelerator.device
        )
        seconds, save_flag, stop_flag = broadcast(state).tolist()
        self.elapsed = self._before + seconds
        self._since, self._pace = self._steps, seconds / (self._steps - 1)
        if save_flag:
            self._saved = now
        return bool(stop_flag), bool(save_flag)

    @property
    def step_seconds(self) -> float:
        """Seconds a step takes, over this command."""
        return self._pace
