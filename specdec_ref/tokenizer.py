"""Text <-> token ids, around the `tokenizers` library: what a decoding loop needs, and nothing a user types is magic.

Two promises go beyond the library's. Special tokens written out in user text are plain text unless the caller asks for
more. And a stream of tokens turns into text piece by piece without ever showing half a character.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from specdec_ref.chat_template import (
    ChatAffixes,
    ChatTemplate,
    Message,
    check_messages,
    hide_specials,
    pattern,
)
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.files import read_json
from specdec_ref.text_stream import TextStream, byte_alphabet

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """A tokenizer with its chat template.

    Args:
        backend: the library's tokenizer.
        named: special tokens by role, as `{"bos_token": "<|im_start|>", …}`.
        chat_template: Jinja source, or None for a base model.
        where: the file or folder it came from, for error messages.

    Attributes:
        special_tokens: string -> id of every special token.
        byte_level: whether every token stands for a fixed sequence of bytes.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        named: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        where: str = "tokenizer",
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._lock = threading.Lock()
        self.where = where
        self.named = dict(named or {})
        added = backend.get_added_tokens_decoder()
        self.special_tokens = {token.content: id for id, token in sorted(added.items()) if token.special}
        self._specials = pattern(self.special_tokens)
        self._template = ChatTemplate(chat_template, self.named, where=where) if chat_template else None
        self.byte_level = isinstance(backend.decoder, decoders.ByteLevel)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read `tokenizer.json`, and beside it the named tokens and the chat template.

        Raises:
            CheckpointError: the file is missing or damaged, or only SentencePiece's `tokenizer.model` is there.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            old = (folder / "tokenizer.model").is_file()
            raise CheckpointError(
                "tokenizer.json is missing",
                where=str(folder),
                fix="only tokenizer.model is there: convert it with transformers"
                if old
                else "take a complete copy of the model",
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"cannot be read: {_one_line(error)}", where=str(file), fix="take a sound copy"
            ) from error
        config: dict[str, Any] = {}
        for part in ("special_tokens_map.json", "tokenizer_config.json"):
            config |= read_json(folder / part) if (folder / part).is_file() else {}
        named = {}
        for role in _NAMED:
            value = config.get(role)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                named[role] = value
        return cls(backend, named=named, chat_template=_template_source(folder, config), where=str(folder))

    @classmethod
    def from_bpe(
        cls,
        tokens: Sequence[str],
        merges: Iterable[tuple[str, str]],
        special_ids: Iterable[int],
        *,
        digits_apart: bool,
        named: Mapping[str, str],
        chat_template: str | None,
        where: str,
    ) -> Tokenizer:
        """Build a byte-level BPE tokenizer from its parts, as a GGUF file holds them.

        Args:
            tokens: every token in GPT-2's byte alphabet; the position is the id.
            merges: pairs in order of priority.
            special_ids: tokens that are never made by merging.
            digits_apart: whether each digit is cut out before anything else (SmolLM), so that no token mixes digits.
            named: special tokens by role.
            chat_template: Jinja source or None.
            where: the file, for error messages.
        """
        model = models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=list(merges))
        backend = tokenizers.Tokenizer(model)
        backend.add_special_tokens(
            [AddedToken(tokens[id], normalized=False, special=True) for id in sorted(special_ids)]
        )
        split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, split]) if digits_apart else split
        backend.decoder = decoders.ByteLevel()
        return cls(backend, named=named, chat_template=chat_template, where=where)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`, as transformers reads them."""
        self._backend.encode_special_tokens = False
        self._backend.save(str(folder / "tokenizer.json"), pretty=False)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.named,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        if self._template is not None:
            (folder / "chat_template.jinja").write_text(self._template.source, encoding="utf-8", newline="")

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id. A model's logits may have more columns (padding), never fewer."""
        return max(self._vocabulary.values(), default=-1) + 1

    @functools.cached_property
    def _vocabulary(self) -> dict[str, int]:
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat` can format messages (a base model has no template)."""
        return self._template is not None

    @property
    def chat_template(self) -> str | None:
        """The chat template's Jinja source; None for a base model."""
        return None if self._template is None else self._template.source

    def to_json(self) -> dict[str, Any]:
        """The whole tokenizer as the `tokenizers` library describes it: what `tokenizer.json` holds."""
        return json.loads(self._backend.to_str())

    @property
    def bos_id(self) -> int | None:
        """Id of the token named as the beginning of a text, if any."""
        return self._vocabulary.get(self.named.get("bos_token", ""))

    @property
    def eos_id(self) -> int | None:
        """Id of the token named as the end of a text, if any; a model may have more (`LoadedModel.eos_ids`)."""
        return self._vocabulary.get(self.named.get("eos_token", ""))

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """Return the ids of a text. No token is added in front or behind.

        Args:
            text: any text. Bytes that the vocabulary lacks (SmolLM2 has no token for 21 of the 256) are dropped, as
                every other reader of the same tokenizer does.
            parse_special: turn special-token strings into their tokens. Off, they are plain text: users type data.

        Raises:
            UsageError: `text` is not text, or holds half of a surrogate pair.
        """
        if not isinstance(text, str):
            raise UsageError(f"expected text, found {type(text).__name__}", where="text to tokenize")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"half of a surrogate pair at position {error.start} is no character",
                where="text to tokenize",
            ) from error
        with self._lock:
            self._backend.encode_special_tokens = not parse_special
            return list(self._backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of ids. Incomplete or invalid UTF-8 shows as U+FFFD; ids without a token are skipped."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special)

    def stream(self, skip_special: bool = False) -> TextStream:
        """A decoder that takes one id after another and returns text as soon as it is certain."""
        return TextStream(self, skip_special=skip_special)

    def token(self, id: int) -> str:
        """One token as text for tables: bytes that are no character by themselves show as `\\xe2` and the like."""
        if not self.byte_level:
            return self.decode([id])
        return self.token_bytes(id).decode("utf-8", errors="backslashreplace")

    def token_bytes(self, id: int) -> bytes:
        """The UTF-8 bytes one token stands for (byte-level tokenizers); empty for an id without a token."""
        text = self._backend.id_to_token(id)
        if text is None:
            return b""
        alphabet = byte_alphabet()
        if all(character in alphabet for character in text):
            return bytes(alphabet[character] for character in text)
        return text.encode()  # an added token written in plain characters

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Return the ids of a conversation in the model's own format.

        Special tokens come from the template only. The same strings inside a message stay text.

        Args:
            messages: objects with a `role` and a `content`, both text.
            add_generation_prompt: end with the opening of the assistant's answer.

        Raises:
            UsageError: the messages are malformed or refused by the template.
            CheckpointError: the model has no chat template.
        """
        check_messages(messages)
        template = self._chat_template()
        hidden, originals = hide_specials(messages, self.special_tokens, template.source)
        text = template.render(hidden, add_generation_prompt=add_generation_prompt)
        if not originals or self._specials is None:
            return self.encode(text, parse_special=True)
        ids: list[int] = []
        restore = str.maketrans(originals)
        position = 0
        for match in self._specials.finditer(text):
            ids += self.encode(text[position : match.start()].translate(restore))
            ids.append(self.special_tokens[match[0]])
            position = match.end()
        return ids + self.encode(text[position:].translate(restore))

    def chat_affixes(self) -> ChatAffixes:
        """The chat template as plain prefixes and suffixes, for runtimes that have no Jinja.

        Raises:
            CheckpointError: there is no template, or it cannot be expressed that way.
        """
        return self._chat_template().affixes()

    @functools.cached_property
    def content(self) -> dict[str, list[Any]]:
        """What makes tokenizers the same: `vocabulary` [id, token], `merges` [left, right], `specials` [id, token]."""
        model = self.to_json()["model"]
        merges = [
            pair.split(" ", 1) if isinstance(pair, str) else list(pair) for pair in model.get("merges", [])
        ]
        vocabulary = sorted([id, token] for token, id in self._vocabulary.items())
        specials = sorted([id, token] for token, id in self.special_tokens.items())
        return {"vocabulary": vocabulary, "merges": merges, "specials": specials}

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of `content` as compact JSON with sorted keys."""
        text = json.dumps(self.content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise CheckpointError(
                "the model has no chat template", where=self.where, fix="give it a plain prompt"
            )
        return self._template


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_bytes().decode("utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several templates by name
        source = next((item.get("template") for item in source if item.get("name") == "default"), None)
    return source if isinstance(source, str) else None


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
