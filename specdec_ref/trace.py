"""What a generation did, round by round: the record that tests, figures, benchmarks and every language share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Round:
    """One target pass.

    Attributes:
        k: lookahead asked for, after clipping to the room that was left.
        reason: who decided on k, or why fewer were drafted ("fixed", "budget", "confidence", "no match", "gate", …).
        drafted: proposed tokens. When the text ends inside them, only those up to the end.
        accepted: how many of them stand (n).
        next: the target's own token after them; None when the text ended inside the drafted ones.
        kind: "correction" after a rejection, "bonus" when all stand, "plain" when none was drafted, "stop" when next is None.
    """

    k: int
    reason: str
    drafted: list[int]
    accepted: int
    next: int | None
    kind: Literal["correction", "bonus", "plain", "stop"]

    @property
    def emitted(self) -> list[int]:
        """The tokens this round added to the text."""
        return self.drafted[: self.accepted] + ([] if self.next is None else [self.next])


@dataclass
class Telemetry:
    """Counters of one generation; the same struct in Python, C++, Swift and Kotlin.

    Only tokens that were verified and belong to the text's course are counted: nothing after the end of the text.

    Attributes:
        rounds: target passes after the prompt, plain ones too.
        drafted: tokens proposed.
        accepted: proposed tokens that stand.
        emitted: tokens of the text: `accepted` plus one per round that has a `next`.
        target_passes: equal to `rounds`; the prompt's own passes are not among them.
        draft_passes: forward passes of the draft model after the prompt.
        per_position_drafted: [i] rounds that proposed a token in slot i.
        per_position_judged: [i] rounds in which slot i was decided, all slots before it having been accepted.
        per_position_accepted: [i] rounds in which slot i was accepted.
        k_trace: k of each round.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    target_passes: int = 0
    draft_passes: int = 0
    per_position_drafted: list[int] = field(default_factory=list)
    per_position_judged: list[int] = field(default_factory=list)
    per_position_accepted: list[int] = field(default_factory=list)
    k_trace: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, trace: list[Round], draft_passes: int = 0) -> Telemetry:
        """Count a trace."""
        width = max((len(r.drafted) for r in trace), default=0)

        def rounds_with(least: Any) -> list[int]:
            return [sum(least(r) > slot for r in trace) for slot in range(width)]

        return cls(
            rounds=len(trace),
            drafted=sum(len(r.drafted) for r in trace),
            accepted=sum(r.accepted for r in trace),
            emitted=sum(len(r.emitted) for r in trace),
            target_passes=len(trace),
            draft_passes=draft_passes,
            per_position_drafted=rounds_with(lambda r: len(r.drafted)),
            per_position_judged=rounds_with(lambda r: min(r.accepted + 1, len(r.drafted))),
            per_position_accepted=rounds_with(lambda r: r.accepted),
            k_trace=[r.k for r in trace],
        )

    def __add__(self, other: Telemetry) -> Telemetry:
        def add(a: list[int], b: list[int]) -> list[int]:
            width = max(len(a), len(b))
            return [
                x + y for x, y in zip(a + [0] * (width - len(a)), b + [0] * (width - len(b)), strict=True)
            ]

        merged: dict[str, Any] = {}
        for name, mine in asdict(self).items():
            theirs = getattr(other, name)
            merged[name] = mine + theirs if name == "k_trace" or isinstance(mine, int) else add(mine, theirs)
        return Telemetry(**merged)

    @property
    def tau(self) -> float:
        """Tokens per target pass; 0.0 before the first pass."""
        return self.emitted / self.target_passes if self.target_passes else 0.0

    @property
    def alpha(self) -> list[float]:
        """Acceptance probability by slot, given that all earlier slots were accepted."""
        return [a / j for a, j in zip(self.per_position_accepted, self.per_position_judged, strict=True) if j]

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of all proposed tokens; 0.0 when none was proposed."""
        return self.accepted / self.drafted if self.drafted else 0.0


FinishReason = Literal["eos", "stop", "length", "context", "cancelled"]


@dataclass(frozen=True)
class Generation:
    """The result of one run of `autoregressive` or `speculative`.

    Attributes:
        tokens: generated ids, an end-of-text id included.
        finish_reason: "eos"; "stop" (the caller's stop condition); "length" (max_new_tokens); "context" (no room left);
            "cancelled" (the callback asked to end).
        trace: every round.
        telemetry: its counters.
        seconds: {"prefill", "decode"}: time on the prompt and on everything after it.
    """

    tokens: list[int]
    finish_reason: FinishReason
    trace: list[Round]
    telemetry: Telemetry
    seconds: dict[str, float]

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens over decode time, the prompt left out."""
        return len(self.tokens) / self.seconds["decode"] if self.tokens else 0.0
