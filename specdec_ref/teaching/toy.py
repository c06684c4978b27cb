"""Models small enough to read: a table of logits that keeps the contract of a real one, and counts what it is asked.

A lesson meets an idea on these first. They serve as target and, inside a `ModelDrafter`, as draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


class TableModel:
    """A language model that is a table: row i scores what follows token i.

    With `remembers_all` a row is chosen by every token held, not by the last one alone: a cache that is one token off then
    shows in the text, as it does in a real model.

    Args:
        logits: [V, V].
        remembers_all: whether earlier tokens matter.
        most_passes: forward passes after which it refuses, so that an endless loop ends with a message.

    Attributes:
        held: the tokens that a real model would hold in its cache.
        passes: the number of tokens fed by each `forward`.
        fed: tokens fed by `forward` and `prefill` together.
        resets: times that everything was forgotten.
    """

    def __init__(self, logits: Tensor, *, remembers_all: bool = False, most_passes: int = 10**9) -> None:
        self.table = logits
        self.vocab_size = int(logits.shape[1])
        self.capacity = 4096
        self.head_ids: Tensor | None = None  # it knows the whole vocabulary
        self.remembers_all, self.most_passes = remembers_all, most_passes
        self.held: list[int] = []
        self.passes: list[int] = []
        self.fed = self.resets = 0

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.held)

    def forward(self, tokens: Sequence[int]) -> Tensor:
        """Take in tokens and return the scores of what follows each of them."""
        if len(self.passes) >= self.most_passes:
            raise RuntimeError(f"still going after {self.most_passes} passes: does every round add a token?")
        start = self.length
        self.prefill(tokens)
        self.passes.append(len(tokens))
        return self.table[[self._row(start + i + 1) for i in range(len(tokens))]]

    def prefill(self, tokens: Sequence[int]) -> None:
        """Take in tokens whose scores nobody needs."""
        self.held += tokens
        self.fed += len(tokens)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot roll back to {length}: the model holds {self.length} tokens")
        del self.held[length:]

    def reset(self) -> None:
        """Forget everything; the counters of work done go on."""
        self.held = []
        self.resets += 1

    def _row(self, count: int) -> int:
        if not self.remembers_all:
            return self.held[count - 1]
        row = 0
        for token in self.held[:count]:
            row = (3 * row + token + 1) % self.vocab_size
        return row


class Words:
    """A vocabulary of whole words, split at spaces.

    Args:
        text: every word in it becomes one token, in order of first appearance.
    """

    def __init__(self, text: str) -> None:
        self.words = list(dict.fromkeys(text.split()))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str) -> list[int]:
        """Ids of words."""
        return [self.words.index(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        """Words of ids."""
        return " ".join(self.words[i] for i in ids)


def follows(words: Words, *sentences: str) -> Tensor:
    """A table [V, V] in which each word is followed by the one after it in `sentences`; later sentences win."""
    table = torch.zeros(len(words), len(words))
    for sentence in sentences:
        ids = words.encode(sentence)
        for here, there in pairwise(ids):
            table[here] = 0.0
            table[here, there] = 5.0
    return table


def random_table(vocab: int, seed: int, spread: float = 1.5) -> Tensor:
    """Logits [vocab, vocab]: independent normals, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(vocab, vocab, generator=generator)
