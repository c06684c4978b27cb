"""The few pieces of text that stages need as token ids, encoded once so that a GPU node needs no tokenizer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specdec_ref.distill import openers
from specdec_ref.errors import CheckpointError
from specdec_ref.files import atomic_file

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Prompt:
    """An evaluation prompt: its class, and its ids with the chat template around it."""

    name: str
    kind: str
    tokens: list[int]


@dataclass(frozen=True)
class Texts:
    """Token ids of everything the data stage forces, and of the evaluation prompts.

    Attributes:
        end_of_turn, end_of_text: `<|im_end|>` and `<|endoftext|>`.
        user: header of a user turn at the start of a line.
        to_assistant, to_user: what follows `<|im_end|>` before the other side's first word.
        default_system: the template's own system turn, whole.
        systems: other system turns, whole.
        short_openers, long_openers: first words of user turns.
        prompts: evaluation prompts; the data stage never looks at them.
        tokenizer_sha256: fingerprint of the tokenizer that all ids belong to.
    """

    end_of_turn: int
    end_of_text: int
    user: list[int]
    to_assistant: list[int]
    to_user: list[int]
    default_system: list[int]
    systems: list[list[int]]
    short_openers: list[list[int]]
    long_openers: list[list[int]]
    prompts: list[Prompt] = field(default_factory=list)
    tokenizer_sha256: str = ""

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        with atomic_file(path) as part:
            part.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Texts:
        """Read what `save` wrote."""
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            prompts = [Prompt(**p) for p in values.pop("prompts")]
            return cls(**values, prompts=prompts)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"cannot be read: {error}", where=str(path), fix="run the `encode` stage again"
            ) from error


def prompts_folder() -> Path:
    """The kit's own evaluation prompts, one JSON-lines file a class."""
    return Path(__file__).resolve().parents[2] / "assets" / "prompts"


def read_prompts(path: Path) -> list[tuple[str, str, str]]:
    """(name, class, first user turn) of every prompt in a JSON-lines file or a folder of them."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            if not line.strip():
                continue
            item = json.loads(line)
            text = item["prompt"] if "prompt" in item else item["turns"][0]
            kind = item.get("class") or item.get("category") or file.stem
            found.append((str(item.get("id", f"{file.stem}-{number}")), str(kind), str(text)))
    if not found:
        raise CheckpointError(
            "there are no prompts", where=str(path), fix="one JSON object a line, with `prompt`"
        )
    return found


def encode_texts(encode: Encode, chat: Encode, prompts: list[tuple[str, str, str]], tokenizer: str) -> Texts:
    """Encode the kit's openers in ChatML, the template of the SmolLM2 family, and the prompts in the target's own.

    Args:
        encode: text -> ids, special tokens included.
        chat: a user's message -> ids of the whole conversation up to the answer.
        prompts: what `read_prompts` returns.
        tokenizer: its fingerprint.
    """

    def one(text: str) -> int:
        ids = encode(text)
        if len(ids) != 1:
            raise CheckpointError(
                f"{text!r} is not one token of this tokenizer", fix="only ChatML targets write data"
            )
        return ids[0]

    system = "<|im_start|>system\n{}<|im_end|>\n"
    return Texts(
        end_of_turn=one("<|im_end|>"),
        end_of_text=one("<|endoftext|>"),
        user=encode("<|im_start|>user\n"),
        to_assistant=encode("\n<|im_start|>assistant\n"),
        to_user=encode("\n<|im_start|>user\n"),
        default_system=encode(system.format(openers.DEFAULT_SYSTEM)),
        systems=[encode(system.format(text)) for text in openers.SYSTEMS],
        short_openers=[encode(text) for text in openers.short_openers()],
        long_openers=[encode(text) for text in openers.long_openers()],
        prompts=[Prompt(name, kind, chat(text)) for name, kind, text in prompts],
        tokenizer_sha256=tokenizer,
    )


def random_texts(vocab_size: int, seed: int) -> Texts:
    """Stand-ins for a random target, which has no tokenizer: the same structure out of random ids above 8."""
    rng = random.Random(seed)

    def some(count: int, least: int, most: int) -> list[list[int]]:
        return [[rng.randrange(8, vocab_size) for _ in range(rng.randint(least, most))] for _ in range(count)]

    kinds = [kind for kind in ("chat", "code", "maths") for _ in range(4)]
    prompts = [
        Prompt(f"{kind}-{i}", kind, [1, 5, 4, *ids, 2, 3, 1, 6, 4])
        for i, (kind, ids) in enumerate(zip(kinds, some(12, 3, 8), strict=True))
    ]
    return Texts(
        end_of_turn=2, end_of_text=0, user=[1, 5, 4], to_assistant=[3, 1, 6, 4], to_user=[3, 1, 5, 4],
        default_system=[1, 7, 4, 9, 2, 3], systems=[[1, 7, 4, *ids, 2, 3] for ids in some(3, 1, 3)],
        short_openers=some(12, 1, 2), long_openers=some(6, 1, 3), prompts=prompts,
    )  # fmt: skip
