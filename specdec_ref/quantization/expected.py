"""How many tokens a target pass would bring, computed from a finished text instead of measured by decoding it again.

Speculative decoding never changes the text's distribution, so the text can be written once per target and every draft
judged on it. At temperature 0 the draft's token at a position is accepted exactly if it is the text's: the rounds follow, token
for token. When sampling, a text of the target's distribution p came out of an accepted draft token with probability
min(p, q)/p at each position, independently given the text (that is what acceptance leaves of p), so the rounds are a random
walk over the text whose expectations are sums. Both are exact in expectation: tests compare them with real runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Counts:
    """Expected counters of speculative decoding.

    Attributes:
        emitted: tokens of the texts.
        passes: target passes.
        judged: [K] rounds in which slot i was decided.
        accepted: [K] rounds in which slot i was accepted.
    """

    emitted: float = 0.0
    passes: float = 0.0
    judged: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    @property
    def tau(self) -> float:
        """Tokens per target pass."""
        return self.emitted / self.passes if self.passes else 0.0

    @property
    def alpha(self) -> list[float]:
        """Acceptance probability by slot, given that all slots before were accepted."""
        return [a / j for a, j in zip(self.accepted, self.judged, strict=True) if j > 0]

    def __add__(self, other: Counts) -> Counts:
        def add(a: list[float], b: list[float]) -> list[float]:
            width = max(len(a), len(b))
            return [
                x + y for x, y in zip(a + [0.0] * (width - len(a)), b + [0.0] * (width - len(b)), strict=True)
            ]

        return Counts(
            self.emitted + other.emitted,
            self.passes + other.passes,
            add(self.judged, other.judged),
            add(self.accepted, other.accepted),
        )


def expected_rounds(accept: Sequence[float], k: int, budget: int) -> Counts:
    """Expected rounds of lookahead k over one text.

    Args:
        accept: for every token of the text, the probability that a draft of it stands: 0 or 1 at temperature 0, else
            min(1, q/p) of that token.
        k: lookahead.
        budget: `max_new_tokens`: a round never drafts beyond it. A shorter text ended by itself.
    """
    count = len(accept)
    begins = [1.0] + [0.0] * count  # probability that a round begins at each token
    judged, accepted = [0.0] * k, [0.0] * k
    for start in range(count):
        reach = begins[start]
        if not reach:
            continue
        for slot in range(min(k, budget - 1 - start)):
            at = start + slot
            if at == count:  # the last token was drafted, accepted, and ended the text
                break
            judged[slot] += reach
            accepted[slot] += reach * accept[at]
            begins[at + 1] += reach * (
                1 - accept[at]
            )  # the correction is this token; the next round begins after it
            reach *= accept[at]
        else:
            at = start + min(k, budget - 1 - start)
            if at < count:  # the bonus token
                begins[at + 1] += reach
    return Counts(float(count), sum(begins[:count]), judged, accepted)
