"""Byte-level BPE the slow and obvious way, sharing nothing with the `tokenizers` library but the vocabulary."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import regex

GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
PIECES = regex.compile(r"\p{N}|\P{N}+")


class SlowBPE:
    """Digits apart, then GPT-2's pattern, then the merge of lowest rank until none applies. No special tokens."""

    def __init__(self, tokenizer_json: Path) -> None:
        model = json.loads(tokenizer_json.read_text(encoding="utf-8"))["model"]
        self.vocabulary: dict[str, int] = model["vocab"]
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = (byte for byte in range(256) if byte not in printable)
        self.alphabet = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(rest)}

    def encode(self, text: str) -> list[int]:
        ids = []
        for piece in PIECES.findall(text):
            for word in GPT2.findall(piece):
                parts = [self.alphabet[byte] for byte in word.encode()]
                # A byte without a token vanishes before merging, as in the library.
                ids += self._merge([part for part in parts if part in self.vocabulary])
        return ids

    def _merge(self, parts: list[str]) -> list[int]:
        while len(parts) > 1:
            ranked = [(self.ranks.get(pair, len(self.ranks)), i) for i, pair in enumerate(pairwise(parts))]
            rank, i = min(ranked)
            if rank == len(self.ranks):
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [self.vocabulary[part] for part in parts]
