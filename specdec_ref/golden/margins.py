"""How far each decision of a run is from going the other way.

Two machines compute the same logits to about 1e-5, not to the bit. A decision taken at less than that distance
would differ between them, and a golden vector that holds it would fail for no fault. So every decision is
measured here, and cases with a close one are not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec_ref.acceptance import Draft
from specdec_ref.drafters import Drafter
from specdec_ref.drafters.base import Request
from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling, distribution, draw

LEAST_GAP = 0.01
"""Least distance between the largest and the second largest logit of a greedy decision."""

LEAST_MARGIN = 1e-4
"""Least distance, in probability, of every comparison with a uniform number or a threshold."""


def top_gap(logits: Tensor) -> float:
    """Largest logit minus the second largest."""
    first, second = logits.double().topk(2).values.tolist()
    return float(first - second)


def draw_margin(weights: Tensor, uniform: float) -> float:
    """Distance of the point that `uniform` picks from the nearest boundary between two tokens."""
    mass = weights.double().cumsum(0)
    inner = mass[(mass > 0) & (mass < mass[-1])]
    return float((inner - uniform * mass[-1]).abs().min()) if len(inner) else 1.0


def accept_margin(p: Tensor, q: Tensor, token: int, uniform: float) -> float:
    """Distance of `uniform` from the acceptance probability's p/q, which it is compared with."""
    return abs(uniform - float(p[token]) / float(q[token])) if q[token] > 0 else 1.0


def cut_margin(logits: Tensor, sampling: Sampling) -> float:
    """Distance of the processors' cuts (top-k, top-p, min-p) from keeping one token more or less."""
    if sampling.greedy:
        return top_gap(logits)
    margins = [1.0]
    scaled = logits.double() / sampling.temperature
    if 0 < sampling.top_k < scaled.numel():
        ordered = scaled.sort(descending=True, stable=True)
        margins.append(float(ordered.values[sampling.top_k - 1] - ordered.values[sampling.top_k]))
        scaled = scaled.index_fill(0, ordered.indices[sampling.top_k :], -torch.inf)
    probabilities = scaled.softmax(-1).sort(descending=True, stable=True).values
    if sampling.top_p < 1:
        mass = probabilities.cumsum(0)
        margins.append(float((mass - sampling.top_p).abs().min()))
        probabilities = probabilities[: int((mass < sampling.top_p).sum()) + 1]
    if sampling.min_p > 0:
        margins.append(float((probabilities / probabilities[0] - sampling.min_p).abs().min()))
    return min(margins)


class RecordingRunner(Runner):
    """A runner that keeps the logits of every `forward`."""

    def reset(self) -> None:
        super().reset()
        self.recorded: list[Tensor] = []

    def forward(self, tokens: Sequence[int]) -> Tensor:
        logits = super().forward(tokens)
        self.recorded.append(logits.clone())
        return logits


@dataclass(frozen=True)
class _Proposal:
    draft: Draft
    logits: list[Tensor]  # one row per pass of the draft model; empty if it was not asked


class RecordingDrafter:
    """Keeps, for each round, what was drafted and which logits of the draft model led to it."""

    def __init__(self, inner: Drafter, runner: RecordingRunner) -> None:
        self.inner, self._runner = inner, runner
        self.proposals: dict[int, _Proposal] = {}

    @property
    def passes(self) -> int:
        return self.inner.passes

    def begin(self, prompt: Sequence[int]) -> None:
        self.inner.begin(prompt)
        self.proposals.clear()

    def propose(self, request: Request) -> tuple[Draft, str | None]:
        already = len(self._runner.recorded)
        draft, reason = self.inner.propose(request)
        rows = [logits[-1] for logits in self._runner.recorded[already:]]
        self.proposals[request.round_index] = _Proposal(draft, rows)
        return draft, reason


@dataclass(frozen=True)
class Margins:
    """The closest greedy decision and the closest comparison with a number; infinite where there was none."""

    gap: float = float("inf")
    margin: float = float("inf")

    @property
    def enough(self) -> bool:
        """Whether the run repeats on another processor."""
        return self.gap >= LEAST_GAP and self.margin >= LEAST_MARGIN


def measure(
    target: RecordingRunner,
    drafter: RecordingDrafter | None,
    sampling: Sampling,
    uniforms: Uniforms,
    *,
    verifier: str,
    threshold: float | None = None,
) -> Margins:
    """Measure the run that `target` and `drafter` have just recorded.

    Args:
        target: recorded one `forward` per round.
        drafter: None for plain decoding.
        sampling: of the run.
        uniforms: of the run.
        verifier: "rejection" or "match"; plain decoding draws like "match".
        threshold: of a confidence stop, if there was one.
    """
    gaps, margins, emitted = [float("inf")], [float("inf")], 0
    for round_index, rows in enumerate(target.recorded):
        proposal = drafter.proposals.get(round_index) if drafter is not None else None
        draft = proposal.draft if proposal is not None else Draft()
        for slot, logits in enumerate(proposal.logits if proposal is not None else []):
            if threshold is not None:
                margins.append(abs(float(logits.double().softmax(-1).max()) - threshold))
            if slot >= len(draft.tokens):
                continue
            if sampling.greedy:
                gaps.append(top_gap(logits))
            else:
                uniform = uniforms(round_index, slot, Purpose.DRAFT)
                margins += [
                    cut_margin(logits, sampling),
                    draw_margin(distribution(logits, sampling), uniform),
                ]
        if sampling.greedy:
            judged = _greedy_gaps(rows, draft)
            gaps += judged
            emitted += len(judged)
        else:
            first = emitted if verifier == "match" else None
            judged = sampled_margins(rows, draft, sampling, uniforms, round_index=round_index, emitted=first)
            margins += judged
            emitted += len(judged)
    return Margins(min(gaps), min(margins))


def _greedy_gaps(rows: Tensor, draft: Draft) -> list[float]:
    gaps = []
    for slot in range(len(draft.tokens) + 1):
        gaps.append(top_gap(rows[slot]))
        if slot < len(draft.tokens) and int(rows[slot].argmax()) != draft.tokens[slot]:
            break
    return gaps


def sampled_margins(
    rows: Tensor,
    draft: Draft,
    sampling: Sampling,
    uniforms: Uniforms,
    *,
    round_index: int,
    emitted: int | None,
) -> list[float]:
    """The closest comparison in each slot that a verifier decided; one entry per emitted token.

    Args:
        rows: [K+1, V] logits of the target.
        draft: what was judged.
        sampling, uniforms: as the verifier had them.
        round_index: as the verifier had it.
        emitted: tokens before this round for sample-and-match; None for rejection sampling.
    """
    margins = []
    for slot in range(len(draft.tokens) + 1):
        p = distribution(rows[slot], sampling)
        closest = [cut_margin(rows[slot], sampling)]
        last = slot == len(draft.tokens)
        if emitted is not None:
            uniform = uniforms(emitted + slot, 0, Purpose.TARGET)
            closest.append(draw_margin(p, uniform))
            last = last or draw(p, uniform) != draft.tokens[slot]
        else:
            uniform, weights = uniforms(round_index, slot, Purpose.TARGET), p
            if not last:
                q, token = draft.q_row(slot, len(p)), draft.tokens[slot]
                u_accept = uniforms(round_index, slot, Purpose.ACCEPT)
                closest.append(accept_margin(p, q, token, u_accept))
                last = not u_accept * float(q[token]) < float(p[token])
                weights = (p.double() - q.double()).clamp_(min=0)
            if last:
                closest.append(draw_margin(weights, uniform))
        margins.append(min(closest))
        if last:
            break
    return margins
