"""Accepting or rejecting drafted tokens without changing what the target would have said.

Lossless rejection sampling is from Leviathan et al., "Fast inference from transformers via speculative decoding" (2022),
and Chen et al., "Accelerating large language model decoding with speculative sampling" (2023). p is the target's
distribution, q the draft's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.sampling import Sampling, distribution, draw

Kind = Literal["correction", "bonus", "plain"]


def accept_or_resample(
    p: Tensor, q: Tensor, token: int, u_accept: float, u_resample: float
) -> tuple[bool, int]:
    """Judge one drafted token; the token returned is distributed exactly as p, whatever q was.

    Accept with probability min(1, p[token] / q[token]). On rejection draw from the residual max(p - q, 0), which holds
    just the mass that acceptance left out. If rounding leaves no residual, p and q are the same, and p stands in.

    Args:
        p: [V] float32 target probabilities.
        q: [V] float32 probabilities that `token` was drawn from (one-hot if it was an argmax).
        token: the drafted token.
        u_accept: uniform in [0, 1) that decides acceptance.
        u_resample: uniform in [0, 1) that picks the replacement.

    Returns:
        (True, token) or (False, replacement).
    """
    if u_accept * float(q[token]) < float(p[token]):
        return True, token
    residual = (p.double() - q.double()).clamp_(min=0)
    if not residual.any():
        residual = p
    return False, draw(residual, u_resample)


@dataclass
class Draft:
    """What a drafter proposes in one round.

    Attributes:
        tokens: up to K token ids.
        q: the distribution [V] (float32) each token was drawn from; None stands for one-hot on the token.
    """

    tokens: list[int] = field(default_factory=list)
    q: list[Tensor] | None = None

    def q_row(self, slot: int, vocab_size: int) -> Tensor:
        """q of one slot as a full row [V]."""
        if self.q is not None:
            return self.q[slot]
        return torch.zeros(vocab_size).index_fill_(0, torch.tensor(self.tokens[slot]), 1.0)


@dataclass(frozen=True)
class Verdict:
    """How many drafted tokens stand, and the one token of the target's own that follows them."""

    accepted: int
    next: int
    kind: Kind


class Verifier(Protocol):
    """Turns one target pass over K drafted tokens into n accepted tokens and one more."""

    def __call__(
        self,
        logits: Tensor,
        draft: Draft,
        sampling: Sampling,
        uniforms: Uniforms,
        *,
        round_index: int,
        emitted: int,
    ) -> Verdict:
        """Judge a round.

        Args:
            logits: [K+1, V]; row i scores the token after the first i drafted ones.
            draft: K drafted tokens, K >= 0.
            sampling: applied to the target's rows here; the drafter has applied it to its own.
            uniforms: source of randomness.
            round_index: number of this round, from 0.
            emitted: tokens emitted before this round.
        """
        ...


def _kind(accepted: int, drafted: Sequence[int]) -> Kind:
    if not drafted:
        return "plain"
    return "bonus" if accepted == len(drafted) else "correction"


def greedy_verifier(
    logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Uniforms, *, round_index: int, emitted: int
) -> Verdict:
    """Temperature 0: accept while the drafted token is the target's argmax, then add the target's own argmax.

    Equal to either verifier below on one-hot distributions (tested), without building any.
    """
    best = logits.argmax(-1).tolist()
    accepted = 0
    while accepted < len(draft.tokens) and draft.tokens[accepted] == best[accepted]:
        accepted += 1
    return Verdict(accepted, best[accepted], _kind(accepted, draft.tokens))


def rejection_verifier(
    logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Uniforms, *, round_index: int, emitted: int
) -> Verdict:
    """Speculative sampling: judge each drafted token by `accept_or_resample`; if all stand, draw the bonus token from p."""
    for slot, token in enumerate(draft.tokens):
        p = distribution(logits[slot], sampling)
        accepted, replacement = accept_or_resample(
            p,
            draft.q_row(slot, len(p)),
            token,
            uniforms(round_index, slot, Purpose.ACCEPT),
            uniforms(round_index, slot, Purpose.TARGET),
        )
        if not accepted:
            return Verdict(slot, replacement, "correction")
    slot = len(draft.tokens)
    bonus = draw(distribution(logits[slot], sampling), uniforms(round_index, slot, Purpose.TARGET))
    return Verdict(slot, bonus, _kind(slot, draft.tokens))


def match_verifier(
    logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Uniforms, *, round_index: int, emitted: int
) -> Verdict:
    """Sample-and-match: the target draws its own token at every slot and a drafted token stands while it is the same.

    Accepts with probability p[token] for an argmax draft, never more often than rejection sampling, but each token is drawn
    with the uniform that plain decoding uses for it: same seed, same text, whatever the draft.
    """
    for slot in range(len(draft.tokens) + 1):
        token = draw(distribution(logits[slot], sampling), uniforms(emitted + slot, 0, Purpose.TARGET))
        if slot == len(draft.tokens) or token != draft.tokens[slot]:
            return Verdict(slot, token, _kind(slot, draft.tokens))
    raise AssertionError("unreachable: the last slot always returns")


VERIFIERS: dict[str, Verifier] = {"rejection": rejection_verifier, "match": match_verifier}
"""The verifiers by the names the command line uses; at temperature 0 both reduce to `greedy_verifier`."""
