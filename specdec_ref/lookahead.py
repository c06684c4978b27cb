"""How far to look ahead: policies that choose K for each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specdec_ref.errors import UsageError
from specdec_ref.trace import Round


@dataclass(frozen=True)
class RoundTiming:
    """Seconds that one round took: drafting alone, and all of it."""

    draft: float
    total: float


class LookaheadPolicy(Protocol):
    """Chooses K each round and learns from what came of it.

    Attributes:
        uses_confidence: whether `confident` is to be asked before each drafted token (it costs a softmax over the draft's
            vocabulary).
    """

    @property
    def uses_confidence(self) -> bool: ...

    def next_k(self) -> tuple[int, str]:
        """K for the next round, and the reason that the trace will name."""
        ...

    def confident(self, top_probability: float) -> bool:
        """Whether to draft one more token, given the draft's largest probability for it."""
        ...

    def observe(self, done: Round, timing: RoundTiming) -> None:
        """See a finished round."""
        ...


class FixedLookahead:
    """The same K every round.

    Args:
        k: tokens to draft; 0 is plain decoding.
    """

    uses_confidence = False

    def __init__(self, k: int) -> None:
        if k < 0:
            raise UsageError(f"lookahead K must be >= 0, got {k}")
        self.k = k

    def next_k(self) -> tuple[int, str]:
        return self.k, "fixed"

    def confident(self, top_probability: float) -> bool:
        return True

    def observe(self, done: Round, timing: RoundTiming) -> None:
        pass


class ConfidenceStop(FixedLookahead):
    """Up to K tokens, but none that the draft itself is unsure of.

    The decision uses the draft's distribution, never the token drawn from it: dropping tokens by their value would bias
    the output.

    Args:
        k: most tokens to draft.
        threshold: least probability of the draft's most likely token.
    """

    uses_confidence = True

    def __init__(self, k: int, threshold: float = 0.4) -> None:
        super().__init__(k)
        if not 0 <= threshold <= 1:
            raise UsageError(f"the confidence threshold must be in [0, 1], got {threshold}")
        self.threshold = threshold

    def confident(self, top_probability: float) -> bool:
        return top_probability >= self.threshold


@dataclass(frozen=True)
class Costs:
    """Costs of drafting and verifying, in target steps.

    Attributes:
        c: one draft step.
        v: v[K], one target pass over K drafted tokens (v[0] = 1).
    """

    c: float
    v: dict[int, float]

    def __post_init__(self) -> None:
        if len(self.v) < 2 or 0 not in self.v:
            raise UsageError("costs need v for K = 0 and for at least one larger K")

    def round_cost(self, drafted: int) -> float:
        """Cost of a round with so many drafted tokens; beyond the measured K the last slope goes on."""
        if drafted in self.v:
            return drafted * self.c + self.v[drafted]
        known = sorted(self.v)
        low, high = (
            (known[-2], known[-1]) if drafted > known[-1] else (max(k for k in known if k < drafted),) * 2
        )
        if low == high:
            high = min(k for k in known if k > drafted)
        slope = (self.v[high] - self.v[low]) / (high - low)
        return drafted * self.c + self.v[low] + slope * (drafted - low)


class BreakEvenGate:
    """Turns speculation off while it does not pay, and looks again later.

    The gain is tokens per target pass over the cost of a round in plain steps. Costs are either given or timed as the text
    is generated: then some rounds are run plainly first, to know what a plain step costs. Averages decay, so the gate
    follows the text. Each probe that fails doubles the rest before the next one.

    Timed rounds make K depend on the clock. Greedy text stays the same; sampled text follows the target's distribution but
    no longer repeats from its seed, because K decides which uniforms are used. Give `costs` where it has to.

    Args:
        inner: the policy that chooses K while the gate is open.
        costs: measured costs; None: time the rounds.
        window: rounds over which averages decay.
        probe: rounds observed before the gate may close.
        rest: plain rounds after it closed for the first time; doubles up to `longest_rest`.
        longest_rest: upper limit of the rest.
    """

    def __init__(
        self,
        inner: LookaheadPolicy,
        costs: Costs | None = None,
        *,
        window: int = 16,
        probe: int = 8,
        rest: int = 32,
        longest_rest: int = 512,
    ) -> None:
        self.inner, self.costs = inner, costs
        self.decay = 1 - 1 / window
        self.probe, self.first_rest, self.longest_rest = probe, rest, longest_rest
        self._rest = rest
        self._plain_left = 0 if costs is not None else 2
        self._seen = 0
        self._tokens = self._cost = 0.0
        self._plain_seconds: float | None = None

    @property
    def uses_confidence(self) -> bool:
        return self.inner.uses_confidence

    @property
    def gain(self) -> float | None:
        """Measured speed relative to plain decoding; None before anything was measured."""
        return self._tokens / self._cost if self._cost else None

    def next_k(self) -> tuple[int, str]:
        return (0, "gate") if self._plain_left else self.inner.next_k()

    def confident(self, top_probability: float) -> bool:
        return self.inner.confident(top_probability)

    def observe(self, done: Round, timing: RoundTiming) -> None:
        self.inner.observe(done, timing)
        if not done.drafted:
            # The first plain step also warms caches up, so a minimum tells more than a mean.
            self._plain_seconds = min(timing.total, self._plain_seconds or timing.total)
            if done.reason == "gate":
                self._plain_left -= 1
            return
        cost = (
            self.costs.round_cost(len(done.drafted))
            if self.costs
            else timing.total / (self._plain_seconds or timing.total)
        )
        self._tokens = self._tokens * self.decay + len(done.emitted)
        self._cost = self._cost * self.decay + cost
        self._seen += 1
        if self._seen >= self.probe and self.gain is not None:
            if self.gain < 1:
                self._plain_left = self._rest
                self._rest = min(2 * self._rest, self.longest_rest)
                self._seen = 0
                self._tokens = self._cost = 0.0
            elif self._seen >= 4 * self.probe:
                self._rest = self.first_rest
