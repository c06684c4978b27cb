"""Text from tokens one at a time. A token may end in the middle of a character; half a character is never shown."""

from __future__ import annotations

import codecs
import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec_ref.tokenizer import Tokenizer


class TextStream:
    """Text from tokens that arrive one at a time; made by `Tokenizer.stream`.

    What `push` returned so far plus `finish()` is exactly `Tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._special_ids = frozenset(tokenizer.special_tokens.values()) if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ids: list[int] = []
        self._sent = 0

    def push(self, id: int) -> str:
        """Take one id; return the text that is now certain, which may be empty."""
        if id in self._special_ids:
            return ""
        if self._tokenizer.byte_level:
            return self._utf8.decode(self._tokenizer.token_bytes(id))
        # Other tokenizers join tokens by rules of their own (spaces, byte fallback): decode everything, keep back the
        # end as long as it may still change.
        self._ids.append(id)
        text = self._tokenizer.decode(self._ids)
        end = len(text.rstrip("\ufffd"))
        new, self._sent = text[self._sent : end], max(self._sent, end)
        return new

    def finish(self) -> str:
        """Return what was kept back; a character that never got its last byte becomes U+FFFD."""
        if self._tokenizer.byte_level:
            return self._utf8.decode(b"", final=True)
        text = self._tokenizer.decode(self._ids)
        new, self._sent = text[self._sent :], len(text)
        return new


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet, character -> byte: printable bytes are themselves, the others characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}
