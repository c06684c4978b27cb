"""The losslessness check: many short generations against the exact law of the target, and their books.

One check has seven statistics: chi-square and total variation of the first token, of the first two tokens jointly and of the
last two jointly, and the chi-square of all transitions pooled (the target is a Markov chain, so every token of every text
counts). Each raises a false alarm with probability at most `ALARM` over the choice of seeds: total variation by the
Bretagnolle-Huber-Carol inequality, chi-square by its limit law (cells with fewer than 20 expected texts are pooled;
`test_the_check_itself_holds_its_level` compares the limit with simulation). Seven times 1e-7 < 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from specdec_ref.acceptance import Verifier, rejection_verifier
from specdec_ref.decoding import speculative
from specdec_ref.drafters import Drafter
from specdec_ref.lookahead import LookaheadPolicy
from specdec_ref.sampling import Sampling, distribution
from specdec_ref.trace import Generation
from tests.helpers.models import TableModel
from tests.helpers.slow_sampling import chain_law, slow_distribution

ALARM = 1e-7
RUNS = 700
LEAST_EXPECTED = 20


@dataclass
class Case:
    """A small world in which the law of the text is known.

    Attributes:
        target: logits [V, V]; row i scores what follows token i.
        drafter: made afresh for the case.
        lookahead: K, or a function that makes a policy for one generation.
        sampling, verifier: as in `speculative`.
        length: tokens per text.
        decode: the loop under test.
    """

    target: Tensor
    drafter: Callable[[], Drafter]
    lookahead: int | Callable[[], LookaheadPolicy]
    sampling: Sampling = field(default_factory=lambda: Sampling(1.0))
    verifier: Verifier = rejection_verifier
    length: int = 6
    prompt: Sequence[int] = (0, 1, 2, 3, 1, 0)
    decode: Callable[..., Generation] = speculative

    def make(self) -> tuple[TableModel, Drafter]:
        """A target and a drafter."""
        return TableModel(self.target, capacity=64), self.drafter()

    def run(self, runs: int = RUNS, first_seed: int = 0) -> tuple[np.ndarray, list[str]]:
        """Texts [runs, length] (cut or padded with -1 to that length) and what is wrong with their books."""
        target, drafter = self.make()
        texts, faults = np.full((runs, self.length), -1), set()
        for index in range(runs):
            target.passes = []
            result = self.decode(
                target,
                drafter,
                self.prompt,
                lookahead=self.lookahead if isinstance(self.lookahead, int) else self.lookahead(),
                verifier=self.verifier,
                sampling=self.sampling,
                max_new_tokens=self.length,
                seed=first_seed + index,
            )
            kept = result.tokens[: self.length]
            texts[index, : len(kept)] = kept
            faults.update(miscounts(result, self.length, target.passes))
        return texts, sorted(faults)

    def law(self) -> np.ndarray:
        """The exact law of a text, from the slow reference."""
        return chain_law(self.target.double().numpy(), self.prompt[-1], self.length, self.sampling)


def miscounts(result: Generation, wanted: int, passes: Sequence[int]) -> list[str]:
    """What the books of a generation that nothing cut short get wrong."""
    counters, trace = result.telemetry, result.trace
    checks = {
        "not exactly max_new_tokens": len(result.tokens) == wanted,
        "the rounds do not spell the text": [t for r in trace for t in r.emitted] == result.tokens,
        "a round without a token of the target's own": all(r.next is not None for r in trace),
        "emitted != accepted + rounds": counters.emitted == counters.accepted + counters.rounds,
        "target passes miscounted": counters.target_passes == len(passes),
        "a pass over other than drafted + 1 tokens": list(passes) == [len(r.drafted) + 1 for r in trace],
    }
    return [fault for fault, fine in checks.items() if not fine]


def views(texts: np.ndarray, law: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Observed counts and expected probabilities, flattened, of each view of the texts."""
    vocab, length = law.shape[0], law.ndim
    kept = {"first token": (0,), "first two tokens": (0, 1), "last two tokens": (length - 2, length - 1)}
    seen = {}
    for name, axes in kept.items():
        counts = np.zeros((vocab,) * len(axes))
        np.add.at(counts, tuple(texts[:, axis] for axis in axes), 1)
        others = tuple(axis for axis in range(length) if axis not in axes)
        seen[name] = counts.ravel(), law.sum(axis=others).ravel()
    return seen


def chi_square(counts: np.ndarray, law: np.ndarray) -> tuple[float, int]:
    """Pearson's chi-square with rare cells pooled, and its degrees of freedom; infinite if the impossible was seen."""
    if counts[law == 0].any():
        return math.inf, 1
    possible = law > 0
    counts, expected = counts[possible], law[possible] * counts.sum()
    rare = expected < LEAST_EXPECTED
    if rare.any():
        counts, expected = (
            np.append(counts[~rare], counts[rare].sum()),
            np.append(expected[~rare], expected[rare].sum()),
        )
    if (
        expected[-1] < LEAST_EXPECTED
    ):  # even the pool is rare: leave it out, its texts are too few to tell anything
        counts, expected = counts[:-1], expected[:-1]
    if len(counts) < 2:
        return 0.0, 0
    return float(np.sum((counts - expected) ** 2 / expected)), len(counts) - 1


def chi_square_p_value(*statistics: tuple[float, int]) -> float:
    """Of the sum of independent chi-squares."""
    statistic, freedom = (sum(column) for column in zip(*statistics, strict=True))
    return float(chi2.sf(statistic, freedom)) if freedom else 1.0


def total_variation_p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Upper bound of the probability that an unbiased sampler is as far off in total variation."""
    runs, cells = counts.sum(), int((law > 0).sum())
    distance = abs(counts / runs - law).sum() / 2
    return min(1.0, math.exp(cells * math.log(2) - 2 * runs * distance**2))


def p_values(texts: np.ndarray, case: Case) -> dict[str, float]:
    """The p-value of every statistic."""
    values = {}
    for view, (counts, expected) in views(texts, case.law()).items():
        values[f"{view}, chi-square"] = chi_square_p_value(chi_square(counts, expected))
        values[f"{view}, total variation"] = total_variation_p_value(counts, expected)
    vocab = len(case.target)
    transitions = np.zeros((vocab, vocab))
    before = np.hstack([np.full((len(texts), 1), case.prompt[-1]), texts[:, :-1]])
    np.add.at(transitions, (before, texts), 1)
    rows = [slow_distribution(row, case.sampling) for row in case.target.double().numpy()]
    seen = [chi_square(n, p) for n, p in zip(transitions, rows, strict=True) if n.sum() > 0]
    values["all transitions, chi-square"] = chi_square_p_value(*seen)
    return values


def assert_lossless(case: Case, runs: int = RUNS, first_seed: int = 0) -> None:
    """Fail if the texts of `case` are not those of its target, or their books are wrong."""
    texts, faults = case.run(runs, first_seed)
    assert not faults, faults
    alarms = {name: value for name, value in p_values(texts, case).items() if value < ALARM}
    assert not alarms, alarms


class MemoisedDistribution:
    """`distribution` with a memory: it is a pure function and a table has few rows, so this changes speed alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, Sampling], Tensor] = {}

    def __call__(self, logits: Tensor, sampling: Sampling) -> Tensor:
        key = logits.numpy().tobytes(), sampling
        if key not in self._known:
            self._known[key] = distribution(logits, sampling)
        return self._known[key]


def remember_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop, the verifiers and the model drafter use one `MemoisedDistribution`."""
    memoised = MemoisedDistribution()
    for module in ("acceptance", "decoding", "drafters.model_draft"):
        monkeypatch.setattr(f"specdec_ref.{module}.distribution", memoised)


def plain(target: TableModel, drafter: Any, prompt: Sequence[int], **options: Any) -> Generation:
    """`autoregressive` in the place of a speculative loop."""
    from specdec_ref.decoding import autoregressive

    del options["lookahead"], options["verifier"]
    return autoregressive(target, prompt, **options)


def contrary_tables(seed: int = 45, vocab: int = 4, columns: int | None = None) -> tuple[Tensor, Tensor]:
    """Logits of a target and of a draft that disagree: the mean total variation of the rows is near 0.5.

    The seed was chosen so that every planted fault shifts the law well: the chi-square divergence of one token is at least
    0.1 for all but the bfloat16 one.
    """
    make = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return make(vocab, vocab), make(vocab, columns or vocab)
