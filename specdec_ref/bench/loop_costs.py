"""Costs as the decoding loop meets them: any drafter, its own overhead included."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_ref.decoding import speculative
from specdec_ref.drafters import Drafter
from specdec_ref.lookahead import FixedLookahead, RoundTiming
from specdec_ref.runner import LanguageModel
from specdec_ref.trace import Round


class _Stopwatch(FixedLookahead):
    """A fixed lookahead that keeps each round's seconds: of drafting by the token, and of the whole round."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.draft: list[float] = []
        self.total: list[float] = []

    def observe(self, done: Round, timing: RoundTiming) -> None:
        self.total.append(timing.total)
        if self.k and len(done.drafted) == self.k:
            self.draft.append(timing.draft / self.k)


def draft_cost(
    target: LanguageModel, drafter: Drafter, prompt: Sequence[int], *, k: int = 4, tokens: int = 64
) -> float:
    """c: seconds of drafting per drafted token, over the seconds of a plain step.

    Both come from texts that are really decoded, plainly and speculatively, so that caches are as they are in use; each is
    the lower quartile over rounds, because what other programs do to the machine only ever adds time.

    Args:
        target: the model whose step is the unit.
        drafter: what is timed. One that proposed k tokens in no round (prompt lookup on a text without repetition) gives 0.
        prompt: token ids.
        k: lookahead.
        tokens: new tokens of each text.
    """
    watches = _Stopwatch(0), _Stopwatch(k)
    for watch in watches:
        speculative(target, drafter, prompt, lookahead=watch, max_new_tokens=tokens)
    plain, fast = watches
    return _lower_quartile(fast.draft) / _lower_quartile(plain.total)


def _lower_quartile(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 4] if seconds else 0.0
