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
from torch.nn import functional as F

from specdec_ref.distill.blocks import layers_of
from specdec_ref.feature_draft import FeatureDraft
from specdec_ref.model import Decoder, Layer, Stack, rope_table, tap
from specdec_ref.rng import Purpose
from specdec_ref.trace import Round


class BatchedRunner:
    """A model's blocks over static caches of B sequences, each with a length of its own.

    Args:
        model: on its device.
        batch: B.
        capacity: most tokens of a sequence.
        taps: keep the streams after so many blocks, for a feature-level draft.

    Attributes:
        features: [B, capacity, taps x D] those streams, side by side; like the caches, what lies at or beyond a sequence's
            length is stale.
    """

    def __init__(self, model: Stack, batch: int, capacity: int, taps: Sequence[int] = ()) -> None:
        c, like = model.config, next(model.parameters())
        self.model, self.capacity = model, capacity
        shape = (c.num_hidden_layers, batch, c.num_key_value_heads, capacity, c.head_dim)
        self.keys = torch.zeros(shape, device=like.device, dtype=like.dtype)
        self.values = torch.zeros_like(self.keys)
        self.cos, self.sin = rope_table(c, capacity, like)
        self.taps = tuple(taps)
        self.features = like.new_zeros(batch, capacity, len(taps) * c.hidden_size)

    @torch.no_grad()
    def hidden(self, ids: Tensor, start: Tensor) -> Tensor:
        """Put ids [B, T] at positions `start` [B] onwards and return hidden states [B, T, D]. Decoders only."""
        assert isinstance(self.model, Decoder)
        return self.model.norm(self.stream(F.embedding(ids, self.model.embed), start))

    @torch.no_grad()
    def stream(self, x: Tensor, start: Tensor) -> Tensor:
        """All blocks over x [B, T, D], whose rows are at positions `start` [B] onwards.

        What a cache holds before `start` counts, what it holds after the new tokens is ignored: rolling a sequence back is
        passing a smaller start.
        """
        positions = start[:, None] + torch.arange(x.shape[1], device=x.device)  # [B, T]
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]  # [B, 1, T, E]
        seen = torch.arange(self.capacity, device=x.device) <= positions[:, None, :, None]  # [B, 1, T, L]
        taps = {index: x for index in self.taps}
        for index, layer in enumerate(layers_of(self.model)):
            tap(taps, index, x)
            keys, values = self.keys[index], self.values[index]
            attended = self._attend(layer, layer.attention_norm(x), cos, sin, positions, seen, keys, values)
            x = x + layer.out(attended)
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        tap(taps, len(self.keys), x)
        if taps:
            kept = torch.cat([taps[index] for index in self.taps], -1)
            self.features.scatter_(1, positions[..., None].expand_as(kept), kept)
        return x

    def keep(self, rows: Tensor) -> None:
        """Go on with these sequences only."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]
        self.features = self.features[rows]

    def _attend(
        self,
        layer: Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor,
        seen: Tensor,
        keys: Tensor,
        values: Tensor,
    ) -> Tensor:
        c = self.model.config
        heads, groups, width = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        qkv = layer.qkv(x).unflatten(-1, (heads + 2 * groups, width)).transpose(1, 2)
        q, k, v = qkv.split([heads, groups, groups], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = layer.q_norm(q), layer.k_norm(k)
        q, k = q * cos + q.roll(width // 2, -1) * sin, k * cos + k.roll(width // 2, -1) * sin
        place = positions[:, None, :, None].expand(-1, groups, -1, width)
        keys.scatter_(2, place, k)
        values.scatter_(2, place, v)
        q = q.unflatten(1, (groups, heads // groups)).flatten(2, 3)  # [B, G, (H/G) T, E]
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen.repeat(1, 1, heads // groups, 1))
        return out.unflatten(2, (heads // groups, -1)).flatten(1, 2).transpose(1, 2).flatten(-2)


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


class PlainDrafting:
    """A draft model beside its target: fed with the text, then with its own tokens.

    Args:
        draft: the model.
        capacity: of its cache.
        padded: [B, T] prompts.
    """

    def __init__(self, draft: Decoder, capacity: int, padded: Tensor) -> None:
        self.draft, self.runner = draft, BatchedRunner(draft, len(padded), capacity)
        self.runner.hidden(padded, torch.zeros_like(padded[:, 0]))

    def first(self, texts: list[_Text], length: Tensor) -> Tensor:
        """Logits [B, V'] of the first token to draft after texts of `length` [B] tokens."""
        # The last but one token again: it may not have been fed in the last round.
        last = torch.tensor([text.tokens[-2:] for text in texts], device=length.device)
        self._end = length
        return self.draft.logits(self.runner.hidden(last, length - 2)[:, -1])

    def then(self, token: Tensor) -> Tensor:
        """Logits [B, V'] of the token after the drafted one [B]."""
        self._end = self._end + 1
        return self.draft.logits(self.runner.hidden(token[:, None], self._end - 1)[:, -1])


class FeatureDrafting:
    """A feature-level draft: as `FeatureDrafter`, for many texts.

    Every round makes the rows of the last K+1 tokens anew, which is at least those that the target has seen since.

    Args:
        draft, capacity, padded: as in `PlainDrafting`.
        wide: the target's runner, which has taken in the prompts and keeps the draft's features.
        lookahead: K.
    """

    def __init__(
        self, draft: FeatureDraft, wide: BatchedRunner, capacity: int, padded: Tensor, lookahead: int
    ) -> None:
        assert isinstance(wide.model, Decoder)
        self.draft, self.wide, self.embed = draft, wide, wide.model.embed
        self.runner = BatchedRunner(draft, len(padded), capacity)
        self.again = lookahead + 1
        feature = draft.feature(wide.features[:, : padded.shape[1] - 1])
        self._rows(feature, padded[:, 1:], torch.zeros_like(padded[:, 0]))

    def first(self, texts: list[_Text], length: Tensor) -> Tensor:
        """As in `PlainDrafting`."""
        # Texts shorter than that are padded at their end: rows beyond the text are stale, as after any rejection.
        start = (length - 1 - self.again).clamp(min=0)  # rows 0 .. length-2 are the text's
        places = start[:, None] + torch.arange(self.again, device=length.device)
        ids = [
            (text.tokens + [0] * self.again)[s + 1 :][: self.again]
            for text, s in zip(texts, start.tolist(), strict=True)
        ]
        tapped = self.wide.features.gather(1, places[..., None].expand(-1, -1, self.wide.features.shape[-1]))
        own = self._rows(self.draft.feature(tapped), torch.tensor(ids, device=length.device), start)
        at = (length - 2 - start)[:, None, None].expand(-1, 1, own.shape[-1])
        self._own, self._end = own.gather(1, at), length - 1
        return self.draft.logits(self._own[:, -1])

    def then(self, token: Tensor) -> Tensor:
        """As in `PlainDrafting`."""
        self._own = self._rows(self._own, token[:, None], self._end)
        self._end = self._end + 1
        return self.draft.logits(self._own[:, -1])

    def _rows(self, feature: Tensor, following: Tensor, start: Tensor) -> Tensor:
        embedded = F.embedding(following, self.embed).to(feature.dtype)
        return self.runner.stream(self.draft.inputs(feature, embedded), start)


def _draft(
    drafting: PlainDrafting | FeatureDrafting, head_ids: Tensor, length: Tensor, k: int, temperature: float,
    texts: list[_Text], turn: int,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """k tokens for each text [B, k], and q [B, V'] of each slot when sampling."""
    tokens: list[Tensor] = []
    rows: list[Tensor] = []
    for slot in range(k):
        logits = drafting.then(tokens[-1]) if slot else drafting.first(texts, length)
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
