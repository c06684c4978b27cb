"""Speculative decoding of many prompts side by side: the kit's own loop, round for round, at a GPU's speed.

Made for measuring acceptance. Every text takes the rounds that `specdec_ref.decoding.speculative` would take with the same
seed (tested), so tau has its exact definition: emitted tokens over verify passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specdec_ref.distill.batched_drafting import FeatureDrafting, PlainDrafting
from specdec_ref.distill.batched_runner import BatchedRunner
from specdec_ref.feature_draft import FeatureDraft
from specdec_ref.model import Decoder
from specdec_ref.rng import Purpose
from specdec_ref.trace import Round


@dataclass
class _Text:
    tokens: list[int]
    seed: int
    room: int
    rounds: list[Round] = field(default_factory=list)
    finished: bool = False

    def add(self, k: int, drafted: list[int], accepted: int, following: int, eos: frozenset[int]) -> None:
        kind = "plain" if not drafted else "bonus" if accepted == len(drafted) else "correction"
        done = Round(k, "fixed", drafted, accepted, following, kind)  # type: ignore[arg-type]
        emitted = done.emitted
        for count, token in enumerate(emitted, start=1):
            self.room -= 1
            self.finished = token in eos or self.room == 0
            if self.finished and count < len(emitted):
                done = Round(k, "fixed", emitted[:count], count, None, "stop")
                break
            if self.finished:
                break
        self.tokens += done.emitted
        self.rounds.append(done)


@torch.no_grad()
def speculate(
    target: Decoder,
    draft: Decoder | FeatureDraft,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    *,
    lookahead: int,
    temperature: float,
    new_tokens: int,
    eos_ids: Sequence[int],
) -> list[list[Round]]:
    """Decode every prompt speculatively and return the rounds of each.

    Args:
        target, draft: on one device. The draft may have a reduced head.
        prompts: at least two tokens each.
        seeds: one a prompt.
        lookahead: K.
        temperature: 0 for greedy; processors are not applied.
        new_tokens: most tokens of a text.
        eos_ids: tokens that end a text.
    """
    device, eos = target.embed.device, frozenset(eos_ids)
    texts = [_Text(list(p), s, new_tokens) for p, s in zip(prompts, seeds, strict=True)]
    capacity = max(map(len, prompts)) + new_tokens + lookahead + 2
    padded = torch.zeros(len(texts), max(map(len, prompts)), dtype=torch.int64, device=device)
    for row, text in enumerate(texts):
        padded[row, : len(text.tokens)] = torch.tensor(text.tokens)
    zero = torch.zeros(len(texts), dtype=torch.int64, device=device)
    taps = draft.config.taps if isinstance(draft, FeatureDraft) else ()
    wide = BatchedRunner(target, len(texts), capacity, taps)
    wide.hidden(padded, zero)
    drafting: PlainDrafting | FeatureDrafting
    if isinstance(draft, FeatureDraft):
        draft.check_fits(target)
        drafting = FeatureDrafting(draft, wide, capacity, padded, lookahead)
    else:
        drafting = PlainDrafting(draft, capacity, padded)
    head_ids = (
        torch.arange(draft.config.vocab_size, device=device) if draft.head_ids is None else draft.head_ids
    )
    turn, everyone = 0, texts
    while not all(text.finished for text in texts):
        left = [row for row, text in enumerate(texts) if not text.finished]
        if len(left) <= 0.75 * len(
            texts
        ):  # finished texts cost as much as the others: leave them out at times
            texts = [texts[row] for row in left]
            for runner in (wide, drafting.runner):
                runner.keep(torch.tensor(left, device=device))
        length = torch.tensor([len(text.tokens) for text in texts], device=device)
        last = torch.tensor([text.tokens[-2:] for text in texts], device=device)
        drafted, rows = _draft(drafting, head_ids, length, lookahead, temperature, texts, turn)
        logits = target.logits(wide.hidden(torch.cat([last[:, 1:], drafted], 1), length - 1))
        asked = [0 if text.finished else min(lookahead, text.room - 1) for text in texts]
        if temperature == 0:
            accepted, following = _judge_greedy(logits, drafted, asked)
        else:
            accepted, following = _judge(logits, drafted, rows, head_ids, asked, temperature, texts, turn)
        proposals = drafted.tolist()
        for row, text in enumerate(texts):
            if not text.finished:
                text.add(asked[row], proposals[row][: asked[row]], accepted[row], following[row], eos)
        turn += 1
    return [text.rounds for text in everyone]


def _draft(
    drafting: PlainDrafting | FeatureDrafting, head_ids: Tensor, length: Tensor, k: int, temperature: float,
    texts: list[_Text], turn: int,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """k tokens for each text [B, k], and q [B, V'] of each slot when sampling."""
    tokens: list[Tensor] = []
    rows: list[Tensor] = []
    for slot in range(k):
        logits = (
            drafting.then(tokens[-1]) if slot else drafting.first([text.tokens for text in texts], length)
        )
        if temperature == 0:
            row = logits.argmax(-1)
        else:
            rows.append(_distribution(logits, temperature))
            row = _pick(rows[-1], _uniforms(texts, turn, slot, Purpose.DRAFT, logits.device))
        tokens.append(head_ids[row])
    return torch.stack(tokens, 1), rows


def _judge_greedy(logits: Tensor, drafted: Tensor, asked: list[int]) -> tuple[list[int], list[int]]:
    best = logits.argmax(-1)  # [B, k+1]
    limit = torch.tensor(asked, device=logits.device)
    slots = torch.arange(drafted.shape[1], device=logits.device)
    good = (drafted == best[:, :-1]) & (slots < limit[:, None])
    accepted = good.long().cumprod(1).sum(1)
    return accepted.tolist(), best.gather(1, accepted[:, None])[:, 0].tolist()


def _judge(
    logits: Tensor, drafted: Tensor, rows: list[Tensor], head_ids: Tensor, asked: list[int], temperature: float,
    texts: list[_Text], turn: int,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Rejection sampling, as `rejection_verifier`: accepted counts and the tokens that follow."""
    device, k = logits.device, drafted.shape[1]
    limit = torch.tensor(asked, device=device)
    open_ = torch.ones(len(asked), dtype=torch.bool, device=device)  # no slot of this text was rejected yet
    accepted = torch.zeros(len(asked), dtype=torch.int64, device=device)
    following = torch.zeros_like(accepted)
    for slot in range(k + 1):
        p = _distribution(logits[:, slot], temperature)
        u = _uniforms(texts, turn, slot, Purpose.TARGET, device)
        ends = open_ & (limit == slot)  # all drafted tokens stand: the bonus token
        following = torch.where(ends, _pick(p, u), following)
        open_ = open_ & ~ends
        if slot == k:
            break
        q = torch.zeros_like(p).index_copy_(1, head_ids, rows[slot])
        token = drafted[:, slot : slot + 1]
        chance = _uniforms(texts, turn, slot, Purpose.ACCEPT, device)
        stands = chance * q.gather(1, token)[:, 0].double() < p.gather(1, token)[:, 0].double()
        residual = (p.double() - q.double()).clamp_(min=0)
        residual = torch.where(residual.any(-1, keepdim=True), residual, p.double())
        following = torch.where(open_ & ~stands, _pick(residual, u), following)
        open_ = open_ & stands
        accepted += open_.long()
    return accepted.tolist(), following.tolist()


def _distribution(logits: Tensor, temperature: float) -> Tensor:
    p = (logits.float() / temperature).softmax(-1).double()
    return (p / p.sum(-1, keepdim=True)).float()


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    mass = weights.cumsum(-1, dtype=torch.float64)
    token = torch.searchsorted(mass, (uniform * mass[:, -1])[:, None], right=True)[:, 0]
    return token.clamp(max=weights.shape[1] - 1)


def _uniforms(texts: list[_Text], turn: int, slot: int, purpose: Purpose, device: torch.device) -> Tensor:
    return torch.from_numpy(uniform_column([t.seed for t in texts], turn, slot, int(purpose))).to(device)


def uniform_column(seeds: Sequence[int], round_index: int, slot: int, purpose: int) -> np.ndarray:
    """`Uniforms(seed)(round_index, slot, purpose)` of many seeds at once, float64."""
    key = np.asarray(seeds, dtype=np.uint64)
    mask, thirty_two = np.uint64(0xFFFFFFFF), np.uint64(32)
    k0, k1 = key & mask, key >> thirty_two
    c = [np.full(key.shape, value, dtype=np.uint64) for value in (round_index, slot, purpose, 0)]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> thirty_two) ^ c[1] ^ k0, b & mask, (a >> thirty_two) ^ c[3] ^ k1, a & mask]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return ((c[0] >> np.uint64(5)) * 67108864.0 + (c[1] >> np.uint64(6))) / 9007199254740992.0
