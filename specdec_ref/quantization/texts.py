"""Texts to compare models on: the kit's held-out pieces, and what a model writes itself."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref import paths
from specdec_ref.distill.batched import uniform_column
from specdec_ref.distill.batched_runner import BatchedRunner
from specdec_ref.model import Decoder
from specdec_ref.rng import Purpose
from specdec_ref.tokenizer import Tokenizer


def held_out_ids(tokenizer: Tokenizer, count: int | None = None) -> list[list[int]]:
    """Token ids of the kit's held-out texts (the first `count`), each as it stands."""
    lines = (paths.assets() / "text" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    return [tokenizer.encode(json.loads(line)["text"]) for line in lines[:count]]


@dataclass
class Written:
    """A text that a model wrote.

    Attributes:
        prompt: token ids it continued.
        tokens: what it wrote, an end-of-text id included.
        p: the probability of each of them at temperature 1.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    p: list[float] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Prompt and text."""
        return self.prompt + self.tokens


@torch.no_grad()
def write_texts(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    new_tokens: int,
    eos_ids: Sequence[int],
    seed: int = 0,
    vocab_size: int | None = None,
) -> list[Written]:
    """Continue every prompt, all side by side; the same texts as `decoding.autoregressive` with seed `seed + i` (tested).

    Args:
        model: writes them.
        prompts: token ids, none empty.
        temperature: 0 (greedy) or 1.
        new_tokens: most tokens of a text.
        eos_ids: tokens that end one.
        seed: of the first prompt's randomness.
        vocab_size: real vocabulary; logits beyond it are cut off.
    """
    texts = [Written(list(prompt)) for prompt in prompts]
    lengths = [len(text.prompt) for text in texts]
    runner = BatchedRunner(model, len(texts), max(lengths) + new_tokens)
    padded = torch.zeros(len(texts), max(lengths), dtype=torch.int64)
    for row, text in enumerate(texts):
        padded[row, : lengths[row]] = torch.tensor(text.prompt)
    runner.hidden(padded, torch.zeros(len(texts), dtype=torch.int64))
    start = torch.tensor(lengths) - 1
    feed = torch.tensor([text.prompt[-1] for text in texts])
    ended, seeds = [False] * len(texts), [seed + i for i in range(len(texts))]
    for step in range(new_tokens):
        logits = model.logits(runner.hidden(feed[:, None], start + step)[:, -1])[:, :vocab_size]
        p = logits.float().softmax(-1)
        if temperature == 0:
            feed = logits.argmax(-1)
        else:
            uniforms = torch.from_numpy(uniform_column(seeds, step, 0, Purpose.TARGET))
            mass = p.cumsum(-1, dtype=torch.float64)
            feed = torch.searchsorted(mass, (uniforms * mass[:, -1])[:, None], right=True)[:, 0]
            feed = feed.clamp(max=p.shape[1] - 1)
        for row, (text, token) in enumerate(zip(texts, feed.tolist(), strict=True)):
            if not ended[row]:
                text.tokens.append(token)
                text.p.append(float(p[row, token]))
                ended[row] = token in eos_ids
        if all(ended):
            break
    return texts


@torch.no_grad()
def acceptance_of(draft: Decoder, text: Written, *, greedy: bool) -> list[float]:
    """The probability that a draft of each token of a text stands, as `expected_rounds` wants it.

    Args:
        draft: may have a reduced head; what it cannot propose is never accepted.
        text: written by the target, greedily or at temperature 1.
        greedy: which of the two.
    """
    logits = draft(torch.tensor(text.ids[:-1]))[len(text.prompt) - 1 :]  # [n, rows]
    head_ids = torch.arange(logits.shape[1]) if draft.head_ids is None else draft.head_ids
    tokens = torch.tensor(text.tokens)
    if greedy:
        return (head_ids[logits.argmax(-1)] == tokens).double().tolist()
    row, said = _rows_of(tokens, draft, logits.shape[1])
    q = logits.float().softmax(-1).gather(1, row[:, None])[:, 0] * said
    return (q.double() / torch.tensor(text.p, dtype=torch.float64)).clamp(max=1).tolist()


@torch.no_grad()
def overlap(p_logits: Tensor, q_logits: Tensor) -> Tensor:
    """Sum over tokens of min(p, q): the probability that one drafted token is accepted at temperature 1, [T]."""
    return torch.minimum(p_logits.float().softmax(-1), q_logits.float().softmax(-1)).sum(-1)


class Reference:
    """A full-precision model's opinion of some texts, to compare others with.

    Hidden states are kept, not distributions (which would be gigabytes), and turned into logits again block by block.

    Args:
        model: the full-precision model.
        texts: token ids; each is read from its first token, and scored from its second.
    """

    _BLOCK = 256

    def __init__(self, model: Decoder, texts: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.texts = [torch.tensor(list(text)) for text in texts]
        with torch.no_grad():
            self._hidden = [model.hidden_states(text[:-1]) for text in self.texts]

    @torch.no_grad()
    def compare(self, other: Decoder) -> tuple[float, float]:
        """(perplexity of `other` on the texts, its mean KL divergence from the reference in nats per token).

        Two models with the same reduced head are compared over its rows, and perplexity leaves out tokens it lacks.
        """
        loss = divergence = 0.0
        positions = scored = 0
        for text, mine in zip(self.texts, self._hidden, strict=True):
            theirs = other.hidden_states(text[:-1])
            for first in range(0, len(mine), self._BLOCK):
                block = slice(first, first + self._BLOCK)
                p = F.log_softmax(self.model.logits(mine[block]).float(), -1)
                q = F.log_softmax(other.logits(theirs[block]).float(), -1)
                divergence += float((p.exp() * (p - q)).sum(dtype=torch.float64))
                row, said = _rows_of(text[1:][block], other, q.shape[1])
                loss -= float((q.gather(1, row[:, None])[:, 0] * said).sum(dtype=torch.float64))
                positions, scored = positions + len(p), scored + int(said.sum())
        return math.exp(loss / scored), max(0.0, divergence / positions)


def _rows_of(tokens: Tensor, model: Decoder, rows: int) -> tuple[Tensor, Tensor]:
    """The row of the head [T] that stands for each token, and whether there is one: a reduced head lacks some."""
    head_ids = torch.arange(rows) if model.head_ids is None else model.head_ids
    row = torch.searchsorted(head_ids, tokens).clamp(max=len(head_ids) - 1)
    return row, head_ids[row] == tokens
