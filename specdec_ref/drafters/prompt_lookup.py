"""Drafting without a model: what followed the last few tokens when they occurred before.

Prompt lookup decoding (Saxena, 2023): free to draft, strong where the answer repeats its prompt (rewriting, extraction, code
edits), silent elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from specdec_ref.acceptance import Draft
from specdec_ref.drafters.base import Request
from specdec_ref.errors import UsageError


class PromptLookup:
    """Proposes the continuation of the most recent earlier occurrence of the text's last n tokens, longest n first.

    Args:
        longest: largest n tried.
        shortest: smallest n tried; 1 proposes often and is wrong often.
    """

    def __init__(self, longest: int = 3, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest:
            raise UsageError(f"n-gram sizes need 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest, self.shortest = longest, shortest
        self.passes = 0
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        """Forget the old text."""
        self._ends: dict[
            tuple[int, ...], int
        ] = {}  # n-gram -> where it last ended, the text's own end left out
        self._indexed = 0

    def propose(self, request: Request) -> tuple[Draft, str | None]:
        """Return up to k copied tokens; none, with "no match", when nothing repeats."""
        tokens = request.tokens
        self._index(tokens)
        for n in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = self._ends.get(tuple(tokens[-n:]))
            if end is not None:
                copied = list(tokens[end : end + request.k])
                return Draft(copied), None if len(copied) == request.k else "no match"
        return Draft(), "no match"

    def _index(self, tokens: Sequence[int]) -> None:
        # Everything but the last token: an n-gram that ends at the end of the text would match itself.
        for end in range(self._indexed + 1, len(tokens)):
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._ends[tuple(tokens[end - n : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)
