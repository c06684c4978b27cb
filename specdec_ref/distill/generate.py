"""The target writes: thousands of texts in lock step, one token each per pass, over static caches.

A small model generates fast only in large batches, where reading the caches is the cost; all texts have the same length, so
the loop needs no bookkeeping of who is finished: a chat that ends goes on with the next user turn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.distill.blocks import layers_of
from specdec_ref.distill.config import DataConfig
from specdec_ref.distill.kernels import decode_attention, sample_rows
from specdec_ref.distill.texts import Texts
from specdec_ref.model import Decoder, rope_table

USER, ASSISTANT, DOCUMENT = 0, 1, 2
"""What a token belongs to; template tokens count as the user's."""


@dataclass(frozen=True)
class Batch:
    """What the texts of one shard are made to begin with, and how they are sampled.

    Attributes:
        prefix: [B, T] forced token ids, -1 where the target is free.
        document: [B] bool: a document, not a chat.
        temperature, min_p: [B].
        user_cap, assistant_cap: [B] longest turns.
        forced: [B, 2, F] tokens after the end of a user turn (0) and of an answer (1).
        forced_length: [B, 2].
    """

    prefix: Tensor
    document: Tensor
    temperature: Tensor
    min_p: Tensor
    user_cap: Tensor
    assistant_cap: Tensor
    forced: Tensor
    forced_length: Tensor


def plan_batch(config: DataConfig, texts: Texts, seed: int) -> Batch:
    """Choose beginnings and sampling of a shard's texts: a function of the seed alone."""
    rng = random.Random(seed)
    rows, length = config.rows, config.tokens
    longest = max(map(len, texts.short_openers + texts.long_openers))
    prefix = torch.full((rows, length), -1, dtype=torch.int64)
    forced = torch.zeros(
        rows, 2, max(len(texts.to_assistant), len(texts.to_user) + longest), dtype=torch.int64
    )
    forced_length = torch.zeros(rows, 2, dtype=torch.int64)
    document, temperature, min_p, user_cap = [], [], [], []
    for row in range(rows):
        is_document = rng.random() < config.raw_share
        is_long = rng.random() < config.long_user_share
        pool = texts.long_openers if is_long else texts.short_openers
        start = (
            [texts.end_of_text]
            if is_document
            else _system(config, texts, rng) + texts.user + _opener(config, pool, rng)
        )
        start = start[: length - 1]
        prefix[row, : len(start)] = torch.tensor(start)
        for side, ids in enumerate((texts.to_assistant, texts.to_user + _opener(config, pool, rng))):
            forced[row, side, : len(ids)] = torch.tensor(ids)
            forced_length[row, side] = len(ids)
        least, most = config.user_caps
        user_cap.append(
            rng.randint((least + most) // 2, most) if is_long else rng.randint(least, (least + most) // 2)
        )
        document.append(is_document)
        temperature.append(_choice(config.temperatures, rng.random()))
        min_p.append(config.min_p if rng.random() < config.min_p_share else 0.0)
    return Batch(
        prefix,
        torch.tensor(document),
        torch.tensor(temperature, dtype=torch.float32),
        torch.tensor(min_p, dtype=torch.float32),
        torch.tensor(user_cap),
        torch.full((rows,), config.assistant_cap),
        forced,
        forced_length,
    )


def _system(config: DataConfig, texts: Texts, rng: random.Random) -> list[int]:
    pick = rng.random()
    if pick < config.default_system_share:
        return texts.default_system
    if pick < config.default_system_share + config.no_system_share:
        return []
    return rng.choice(texts.systems)


def _opener(config: DataConfig, pool: list[list[int]], rng: random.Random) -> list[int]:
    return rng.choice(pool) if rng.random() < config.opener_share else []


def _choice(table: tuple[tuple[float, float], ...], pick: float) -> float:
    for value, share in table:
        pick -= share
        if pick < 0:
            return value
    return table[-1][0]


class Writer:
    """Runs the target over a batch of texts; its caches are allocated once and reused.

    Args:
        target: on its device, in the dtype to generate with.
        rows, tokens: shape of every batch.
    """

    def __init__(self, target: Decoder, rows: int, tokens: int) -> None:
        c = target.config
        self.target, self.tokens = target, tokens
        device, dtype = target.embed.device, target.dtype
        shape = (rows, c.num_key_value_heads, tokens, c.head_dim)
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(c.num_hidden_layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(c.num_hidden_layers)]
        cos, sin = rope_table(c, tokens, torch.empty(0, device=device))
        half = c.head_dim // 2
        self.cos, self.sin = (
            cos[:, half:].contiguous(),
            sin[:, half:].contiguous(),
        )  # the second half's sines are positive

    @torch.no_grad()
    def logits(self, token: Tensor, step: int) -> Tensor:
        """Feed token [B] at position `step` and return the next one's logits [B, V]."""
        c = self.target.config
        x = F.embedding(token, self.target.embed)
        for layer, keys, values in zip(layers_of(self.target), self.keys, self.values, strict=True):
            qkv = layer.qkv(layer.attention_norm(x))
            x = x + layer.out(decode_attention(qkv, keys, values, self.cos, self.sin, step))
            gate, up = layer.gate_up(layer.mlp_norm(x)).split(c.intermediate_size, dim=-1)
            x = x + layer.down(F.silu(gate) * up)
        return self.target.logits(self.target.norm(x))

    @torch.no_grad()
    def write(self, batch: Batch, end_of_turn: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return token ids [B, T] and roles [B, T] (uint8) of the finished texts, on the target's device."""
        device = self.target.embed.device
        b = Batch(**{name: value.to(device) for name, value in vars(batch).items()})
        rows, length = b.prefix.shape
        index = torch.arange(rows, device=device)
        tokens = torch.empty(rows, length, dtype=torch.int64, device=device)
        roles = torch.zeros(rows, length, dtype=torch.uint8, device=device)
        speaker = torch.zeros(rows, dtype=torch.int64, device=device)  # 0 user, 1 assistant
        spoken = torch.zeros_like(speaker)  # free tokens of this turn
        ended = torch.zeros_like(speaker)  # whose turn ended, while the template is being forced
        at = torch.full_like(speaker, -1)  # next forced token after a turn, -1: none
        token = b.prefix[:, 0].clone()
        tokens[:, 0] = token
        for step in range(length - 1):
            logits = self.logits(token, step)
            answering = speaker == ASSISTANT
            temperature = torch.where(answering | b.document, b.temperature, 1.0)
            drawn = sample_rows(logits, temperature, b.min_p, (seed + step) & 0x7FFFFFFF)
            cap = torch.where(answering, b.assistant_cap, b.user_cap)
            drawn = torch.where((spoken >= cap) & ~b.document, end_of_turn, drawn)
            templated = at >= 0
            drawn = torch.where(templated, b.forced[index, ended, at.clamp(min=0)], drawn)
            given = b.prefix[:, step + 1]
            drawn = torch.where(given >= 0, given, drawn)
            role = torch.where(b.document, DOCUMENT, torch.where(templated, USER, speaker))
            tokens[:, step + 1], roles[:, step + 1] = drawn, role.to(torch.uint8)
            # The chat template as a state machine: turn ends -> template tokens -> the other side speaks.
            at = torch.where(templated, at + 1, at)
            done = templated & (at >= b.forced_length[index, ended])
            speaker = torch.where(done, 1 - ended, speaker)
            spoken = torch.where(done | (given >= 0), 0, spoken + 1)
            at = torch.where(done, -1, at)
            ends = (drawn == end_of_turn) & (given < 0) & ~templated & ~b.document
            ended = torch.where(ends, speaker, ended)
            at = torch.where(ends, 0, at)
            token = drawn
        return tokens, roles
