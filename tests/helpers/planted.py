"""Faulty verifiers, drafters and loops of the kinds seen in public systems (F1-F5 of the known faults, and textbook ones).

Each is one small departure from the right code, and each has a test that asserts that the losslessness check rejects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec_ref.acceptance import Draft, Verdict, Verifier, accept_or_resample, rejection_verifier
from specdec_ref.drafters.base import Drafter, Request
from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.runner import LanguageModel
from specdec_ref.sampling import Sampling, distribution, draw
from specdec_ref.trace import Generation, Round, Telemetry
from tests.helpers.planted_judges import Judge


def verifier_with(judge: Judge, read: Callable[[Sampling], Sampling] = lambda sampling: sampling) -> Verifier:
    """The rejection verifier around another acceptance step, or with processors read otherwise."""

    def verify(
        logits: Tensor,
        draft: Draft,
        sampling: Sampling,
        uniforms: Uniforms,
        *,
        round_index: int,
        emitted: int,
    ) -> Verdict:
        drafted = len(draft.tokens)
        rows = distribution(logits, read(sampling))
        for slot, token in enumerate(draft.tokens):
            q = draft.q_row(slot, rows.shape[1])
            u_accept, u_resample = (uniforms(round_index, slot, p) for p in (Purpose.ACCEPT, Purpose.TARGET))
            accepted, other = judge(rows[slot], q, token, u_accept, u_resample)
            if not accepted:
                return Verdict(slot, other, "correction")
        bonus = draw(rows[drafted], uniforms(round_index, drafted, Purpose.TARGET))
        return Verdict(drafted, bonus, "bonus" if drafted else "plain")

    return verify


right_verifier = verifier_with(accept_or_resample)
"""The control: no fault. The check must pass it."""

processors_on_the_draft_only = verifier_with(accept_or_resample, read=lambda sampling: Sampling(1.0))
"""F3: the target's side ignores temperature, top-k, top-p and min-p."""

temperature_on_the_draft_only = verifier_with(
    accept_or_resample, read=lambda s: Sampling(1.0, s.top_k, s.top_p, s.min_p)
)
"""F3: the target's side applies all processors but the temperature."""


def one_uniform_for_all_slots(
    logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Uniforms, *, round_index: int, emitted: int
) -> Verdict:
    """Decides every slot of a round with the same number."""

    class Shared(Uniforms):
        def __call__(self, round_index: int, slot: int, purpose: Purpose) -> float:
            return super().__call__(round_index, 0 if purpose is Purpose.ACCEPT else slot, purpose)

    return rejection_verifier(
        logits, draft, sampling, Shared(uniforms.seed), round_index=round_index, emitted=emitted
    )


def q_of_the_next_slot(
    logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Uniforms, *, round_index: int, emitted: int
) -> Verdict:
    """Rows of q shifted by one against the tokens."""
    shifted = Draft(draft.tokens, [*draft.q[1:], *draft.q[-1:]] if draft.q else None)
    return rejection_verifier(logits, shifted, sampling, uniforms, round_index=round_index, emitted=emitted)


def drops_tokens_by_value(inner: Verifier) -> Verifier:
    """Cuts the draft before token 0: a confidence stop that looks at the token drawn, not at the distribution."""

    def verify(
        logits: Tensor,
        draft: Draft,
        sampling: Sampling,
        uniforms: Uniforms,
        *,
        round_index: int,
        emitted: int,
    ) -> Verdict:
        kept = draft.tokens.index(0) if 0 in draft.tokens else len(draft.tokens)
        cut = Draft(draft.tokens[:kept], None if draft.q is None else draft.q[:kept])
        return inner(logits[: kept + 1], cut, sampling, uniforms, round_index=round_index, emitted=emitted)

    return verify


class TableDrafter:
    """Drafts from a table of logits; what tokens are drawn from and what is reported as q may differ.

    Args:
        table: logits [V, V].
        drawn: processors and logits the tokens are drawn from; default: the right ones.
        argmax: take the most likely token instead of drawing, but report the soft q (F1).
    """

    passes = 0

    def __init__(
        self,
        table: Tensor,
        *,
        drawn: Callable[[Tensor, Sampling], Tensor] = distribution,
        argmax: bool = False,
    ) -> None:
        self.table, self.drawn, self.argmax = table, drawn, argmax

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def propose(self, request: Request) -> tuple[Draft, str | None]:
        tokens: list[int] = []
        q: list[Tensor] = []
        last = request.tokens[-1]
        for slot in range(request.k):
            q.append(distribution(self.table[last], request.sampling))
            row = self.drawn(self.table[last], request.sampling)
            uniform = request.uniforms(request.round_index, slot, Purpose.DRAFT)
            last = int(row.argmax()) if self.argmax else draw(row, uniform)
            tokens.append(last)
        return Draft(tokens, q), None


def drawn_from_bfloat16(logits: Tensor, sampling: Sampling) -> Tensor:
    """F2: tokens are drawn from logits that went through bfloat16, the ratio uses the float32 ones."""
    return distribution(logits.to(torch.bfloat16), sampling)


def drawn_at_another_temperature(logits: Tensor, sampling: Sampling) -> Tensor:
    """F2: tokens are drawn at a third of the temperature that the ratio assumes."""
    return distribution(
        logits, Sampling(sampling.temperature / 3, sampling.top_k, sampling.top_p, sampling.min_p)
    )


def textbook(fault: str = "") -> Callable[..., Generation]:
    """A plain speculative loop of our own, right if `fault` is empty.

    Faults: "overshoots" (F5: the draft is not clipped to the budget), "forgets the bonus" (adds nothing when all drafted
    tokens stand), "re-sends the context" (feeds the whole text every round).
    """

    def decode(
        target: LanguageModel,
        drafter: Drafter,
        prompt: Sequence[int],
        *,
        lookahead: int,
        sampling: Sampling,
        max_new_tokens: int,
        seed: int,
        verifier: Verifier,
        **_: Any,
    ) -> Generation:
        text, trace = list(prompt), []
        budget = len(prompt) + max_new_tokens
        target.reset()
        target.prefill(text[:-1])
        drafter.begin(text)
        while len(text) < budget:
            k = lookahead if fault == "overshoots" else min(lookahead, budget - len(text) - 1)
            draft, _reason = drafter.propose(Request(text, k, sampling, Uniforms(seed), len(trace)))
            if fault == "re-sends the context":
                target.reset()
                logits = target.forward([*text, *draft.tokens])[len(text) - 1 :]
            else:
                logits = target.forward([text[-1], *draft.tokens])
            verdict = verifier(
                logits,
                draft,
                sampling,
                Uniforms(seed),
                round_index=len(trace),
                emitted=len(text) - len(prompt),
            )
            forgotten = fault == "forgets the bonus" and verdict.kind == "bonus"
            after = None if forgotten else verdict.next
            done = Round(k, "fixed", draft.tokens, verdict.accepted, after, verdict.kind)
            target.truncate(len(text) + verdict.accepted - forgotten)
            text += done.emitted
            trace.append(done)
        return Generation(
            text[len(prompt) :], "length", trace, Telemetry.of(trace), {"prefill": 0.0, "decode": 1.0}
        )

    return decode
