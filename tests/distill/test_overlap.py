"""Training never sees an evaluation prompt: the texts that are forced into the data share none of their wording."""

from __future__ import annotations

import re

from specdec_ref.distill import openers
from specdec_ref.distill.texts import prompts_folder, read_prompts

WORDS = 8


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.casefold())


def grams(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + WORDS]) for i in range(len(found) - WORDS + 1)}


def forced_texts() -> list[str]:
    return [*openers.short_openers(), *openers.long_openers(), *openers.SYSTEMS, openers.DEFAULT_SYSTEM]


def test_no_prompt_is_an_opener() -> None:
    forced = {" ".join(words(text)) for text in forced_texts()}
    for name, _, text in read_prompts(prompts_folder()):
        assert " ".join(words(text)) not in forced, name
        first_line = text.strip().splitlines()[0]
        if len(words(first_line)) > 4:  # the request above a text that is to be worked on
            assert " ".join(words(first_line)) not in forced, name


def test_no_prompt_shares_eight_words_in_a_row_with_an_opener() -> None:
    forced = set().union(*map(grams, forced_texts()))
    for name, _, text in read_prompts(prompts_folder()):
        shared = grams(text) & forced
        assert not shared, f"{name}: {' '.join(next(iter(shared)))}"


def test_prompts_do_not_repeat_each_other() -> None:
    prompts = read_prompts(prompts_folder())
    assert len({" ".join(words(text)) for _, _, text in prompts}) == len(prompts)
