"""The kit's prompt sets keep their format, and the hard texts hold what they promise."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "prompts"
CLASSES = ["chat", "code", "explain", "extraction", "maths", "rewriting", "summary"]


def read(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def test_there_is_one_file_per_class() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.jsonl")) == CLASSES


@pytest.mark.parametrize("name", CLASSES)
def test_class_has_eight_well_formed_prompts(name: str) -> None:
    rows = read(name)
    assert len(rows) >= 8
    for number, row in enumerate(rows, 1):
        assert row.keys() == {"id", "class", "prompt"}
        assert row["id"] == f"{name}-{number:02d}"
        assert row["class"] == name
        assert row["prompt"] == row["prompt"].strip()
        assert "<|" not in row["prompt"]


def test_prompts_are_all_different() -> None:
    prompts = [row["prompt"] for name in CLASSES for row in read(name)]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize("name", ["rewriting", "extraction", "summary"])
def test_prompt_carries_the_text_that_the_answer_copies_from(name: str) -> None:
    for row in read(name):
        instruction, source = row["prompt"].split("\n\n", 1)
        assert len(source) >= 300, row["id"]
        assert len(source.split()) <= 150, row["id"]
        assert len(instruction.split()) <= 30, row["id"]


def test_hard_texts_are_valid_unique_and_varied() -> None:
    rows = json.loads((FOLDER / "hard_text.json").read_text(encoding="ascii"))
    texts = [row["text"] for row in rows]
    assert len(texts) >= 60
    assert len(set(texts)) == len({row["name"] for row in rows}) == len(texts)
    whole = "".join(texts)
    whole.encode("utf-8")  # no lone surrogates
    assert "" in texts
    for needed in (
        "\r\n",
        "\t",
        "\u00a0",
        "\u200d",
        "\ufe0f",
        "\U0001f1e9\U0001f1ea",
        "<|im_start|>",
        "<|endoftext|>",
    ):
        assert needed in whole, repr(needed)
    scripts = {unicodedata.name(character, "?").split()[0] for character in whole}
    assert {"CJK", "ARABIC", "HEBREW", "HANGUL", "DEVANAGARI", "THAI", "COMBINING", "CYRILLIC"} <= scripts
    assert max(len(word) for text in texts for word in text.split()) > 250
