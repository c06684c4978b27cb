"""Chat messages -> the text a model was tuned on, through the Jinja template that its tokenizer carries.

A template comes with a downloaded model, so it is foreign code: it runs in Jinja's sandbox. Messages come from
users, so what they contain must stay text: `hide_specials` makes sure that a user who types `<|im_end|>` does not end
the turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec_ref.errors import CheckpointError, UsageError

Message = Mapping[str, Any]
"""`{"role": "user", "content": "…"}`; further keys are handed to the template as they are."""

_PRIVATE_USE = range(0xF0000, 0xFFFFE)


@dataclass(frozen=True)
class ChatAffixes:
    """A template flattened to strings, for runtimes without Jinja.

    A conversation is prefix + content + suffix of every message, then `generation`. One that does not begin with a
    system message begins with `opening` instead (many templates put a default system message there).
    """

    opening: str
    system: tuple[str, str]
    user: tuple[str, str]
    assistant: tuple[str, str]
    generation: str

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The text that the template gives for the same messages."""
        has_system = bool(messages) and messages[0]["role"] == "system"
        parts = [] if has_system else [self.opening]
        for message in messages:
            prefix, suffix = getattr(self, message["role"])
            parts += [prefix, message["content"], suffix]
        return "".join(parts) + (self.generation if add_generation_prompt else "")


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja text, as in `chat_template.jinja`.
        variables: named special tokens that templates refer to (`bos_token`, `eos_token`, …).
        where: what error messages call it.

    Raises:
        CheckpointError: the template is not valid Jinja or uses what is not offered here.
    """

    def __init__(self, source: str, variables: Mapping[str, str], *, where: str = "chat template") -> None:
        self.source, self.variables, self.where = source, dict(variables), where
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise CheckpointError(
                f"cannot be used: {error}",
                where=where,
                fix="the template needs a feature that is not offered",
            ) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation.

        Raises:
            UsageError: the messages are malformed, or the template does not accept them.
        """
        check_messages(messages)
        try:
            return self._template.render(
                **self.variables,
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
            )
        except _Refused as error:
            raise UsageError(f"does not accept these messages: {error}", where=self.where) from error
        except Exception as error:  # whatever a template's own code runs into
            raise UsageError(f"fails on these messages: {error}", where=self.where) from error

    def affixes(self) -> ChatAffixes:
        """Flatten the template to strings, and check on several conversations that they say the same.

        Raises:
            CheckpointError: the template does more than put strings around contents.
        """
        marks = _, u, a, _ = ["\ue001S\ue002", "\ue001U\ue002", "\ue001A\ue002", "\ue001V\ue002"]
        talk = [
            _message(role, mark)
            for role, mark in zip(("system", "user", "assistant", "user"), marks, strict=True)
        ]
        try:
            whole = self.render(talk, add_generation_prompt=False)
            after_assistant = self.render(talk[:3], add_generation_prompt=False).split(a)[1]
            after_user = self.render(talk[:2], add_generation_prompt=False).split(u)[1]
            opening, system_to_user, user_to_assistant, assistant_to_user, _ = re.split(
                "|".join(marks), whole
            )
            bare = self.render(talk[1:2], add_generation_prompt=False).split(u)[0]
            prompted = self.render(talk[:2], add_generation_prompt=True)
            user = (_cut(assistant_to_user, after_assistant), after_user)
            system = (opening, system_to_user[: len(system_to_user) - len(user[0])])
            assistant = (_cut(user_to_assistant, after_user), after_assistant)
            generation = prompted.split(u)[1][len(after_user) :]
            found = ChatAffixes(bare[: len(bare) - len(user[0])], system, user, assistant, generation)
            for conversation in (talk, talk[:2], talk[1:], talk[1:2], talk[1:4] + talk[2:4]):
                for prompt in (False, True):
                    text = self.render(conversation, add_generation_prompt=prompt)
                    if found.render(conversation, add_generation_prompt=prompt) != text:
                        raise ValueError("a conversation comes out differently")
        except (ValueError, IndexError) as error:
            raise CheckpointError(
                f"cannot be flattened to prefixes and suffixes: {error}", where=self.where
            ) from error
        return found


def check_messages(messages: object) -> None:
    """Raise `UsageError` unless `messages` is a list of objects with a text `role` and a text `content`."""
    shape = 'expected [{"role": "user", "content": "…"}, …]'
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UsageError(f"chat messages must be a list, found {type(messages).__name__}", fix=shape)
    if not messages:
        raise UsageError("the list of chat messages is empty", fix=shape)
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UsageError(f"found {type(message).__name__}", where=f"chat message {index}", fix=shape)
        for key in ("role", "content"):
            if key not in message:
                raise UsageError(f"{key!r} is missing", where=f"chat message {index}", fix=shape)
            if not isinstance(message[key], str):
                raise UsageError(
                    f"{key!r} must be text, found {type(message[key]).__name__}",
                    where=f"chat message {index}",
                    fix=shape,
                )


def hide_specials(
    messages: Sequence[Message], specials: Iterable[str], avoid: str
) -> tuple[list[Message], dict[str, str]]:
    """Replace special-token strings inside messages by private-use characters, one for each.

    Args:
        messages: the conversation, untouched.
        specials: strings of the special tokens.
        avoid: further text (the template's) in which the chosen characters must not occur.

    Returns:
        The changed messages, and placeholder -> original string for those that occurred.
    """
    every = pattern(specials)
    if every is None or not any(every.search(text) for text in _strings(messages)):
        return list(messages), {}
    taken = set(avoid).union(*_strings(messages))
    free = (chr(code) for code in _PRIVATE_USE if chr(code) not in taken)
    placeholder: dict[str, str] = {}

    def hide(match: re.Match[str]) -> str:
        if match[0] not in placeholder:
            placeholder[match[0]] = next(free)
        return placeholder[match[0]]

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return every.sub(hide, value)
        if isinstance(value, Mapping):
            return {walk(key): walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list | tuple) else value

    hidden = [walk(message) for message in messages]
    return hidden, {character: special for special, character in placeholder.items()}


def pattern(strings: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of the strings, the longest first; None when there are none."""
    ordered = sorted(filter(None, strings), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


class _Refused(jinja2.TemplateError):
    """A template called `raise_exception`."""


def _refuse(message: object) -> NoReturn:
    raise _Refused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, **{"ensure_ascii": False, "indent": indent, **options})


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _cut(text: str, prefix: str) -> str:
    if not text.startswith(prefix):
        raise ValueError("what follows a message depends on the next one")
    return text[len(prefix) :]


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
