"""Comparing two greedy texts of one model where low precision may honestly part them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_ref.runner import Runner

COMBINATIONS = list(itertools.product((1, 2, 4, 5, 8), ("draft", "lookup")))
"""Lookaheads and drafters that the real pair is compared with."""

LARGEST_ROUNDING = 1e-3
"""Logits of one model computed in two batch shapes differ by less in float32; more would be a wrong result."""


class Recorded:
    """A runner that keeps the logits of every position, and keeps its prompt's cache from one text to the next.

    Attributes:
        rows: position -> the last logits computed for the token after it.
    """

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.rows: dict[int, Tensor] = {}
        self._prompt: list[int] = []

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    @property
    def length(self) -> int:
        return self.inner.length

    def forward(self, tokens: Sequence[int]) -> Tensor:
        start = self.inner.length
        logits = self.inner.forward(tokens)
        self.rows.update(enumerate(logits, start))
        return logits

    def prefill(self, tokens: Sequence[int]) -> None:
        if list(tokens) == self._prompt and self.inner.length >= len(tokens):
            self.inner.truncate(len(tokens))
        else:
            self.inner.reset()
            self.inner.prefill(tokens)
            self._prompt = list(tokens)

    def truncate(self, length: int) -> None:
        self.inner.truncate(length)

    def reset(self) -> None:
        """Forget the logits; whether the cache can stay is decided when the prompt is known."""
        self.rows = {}


@dataclass
class Difference:
    """Where two greedy texts of one prompt part, and how close the plain loop's two best logits were there."""

    name: str
    index: int
    gap: float


@dataclass
class Agreement:
    """What came of comparing texts, gathered over many.

    Attributes:
        batch_shape_error: largest difference of two logits for the same tokens, computed alone and inside a longer pass.
        smallest_gap: smallest distance of the two best logits at any compared position.
        differences: first differences.
        texts, tokens: how much was compared.
    """

    batch_shape_error: float = 0.0
    smallest_gap: float = float("inf")
    differences: list[Difference] | None = None
    texts: int = 0
    tokens: int = 0

    def compare(
        self,
        name: str,
        prompt_tokens: int,
        plain: tuple[list[int], dict[int, Tensor]],
        fast: tuple[list[int], dict[int, Tensor]],
    ) -> None:
        """Add one pair of (tokens, logits rows by position)."""
        (expected, alone), (tokens, together) = plain, fast
        self.differences = self.differences or []
        self.texts += 1
        for index in range(max(len(expected), len(tokens))):
            if index >= min(
                len(expected), len(tokens)
            ):  # one text ended, the other went on after the same tokens
                self.differences.append(Difference(name, index, float("inf")))
                return
            position = prompt_tokens - 1 + index
            error = (alone[position] - together[position]).abs().max()
            best = alone[position].float().topk(2).values
            gap = float(best[0] - best[1])
            self.batch_shape_error = max(self.batch_shape_error, float(error))
            self.smallest_gap = min(self.smallest_gap, gap)
            self.tokens += 1
            if expected[index] != tokens[index]:
                self.differences.append(Difference(name, index, gap))
                return

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            max(self.batch_shape_error, other.batch_shape_error),
            min(self.smallest_gap, other.smallest_gap),
            [*(self.differences or []), *(other.differences or [])],
            self.texts + other.texts,
            self.tokens + other.tokens,
        )

    def illegal(self, limit: float) -> list[Difference]:
        """Differences that rounding does not explain.

        Args:
            limit: the most that may count as batch-shape error, so that wrong logits cannot excuse wrong tokens.
        """
        allowed = min(self.batch_shape_error, limit)
        return [d for d in self.differences or [] if d.gap > allowed]

    def __str__(self) -> str:
        lines = [
            f"{self.texts} texts, {self.tokens} tokens: batch-shape error {self.batch_shape_error:.1e}, "
            f"smallest top-2 gap {self.smallest_gap:.1e}, {len(self.differences or [])} first differences"
        ]
        lines += [f"  {d.name}, token {d.index}: gap {d.gap:.1e}" for d in self.differences or []]
        return "\n".join(lines)


def with_wrong_rollback(runner: Runner) -> Runner:
    """A planted fault: the cache keeps one rejected token in the place of the text's."""
    truncate = runner.cache.truncate

    def late(length: int) -> None:
        kept = runner.cache.length
        truncate(length)
        if 0 < length < kept:  # what a rollback off by one leaves behind
            for stored in (runner.cache.keys, runner.cache.values):
                stored[:, :, length - 1] = stored[:, :, length].clone()

    runner.cache.truncate = late  # type: ignore[method-assign]
    return runner


def double(model: torch.nn.Module) -> torch.nn.Module:
    """A copy in float64."""
    import copy

    return copy.deepcopy(model).double()
