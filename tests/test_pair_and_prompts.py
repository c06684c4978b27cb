"""Loading a pair by name, prompt sets, stop strings."""

import json
from pathlib import Path

import pytest

from specdec_ref.drafters import FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.pair import StopStrings, load_pair
from specdec_ref.prompts import load_prompts

NANO = ("nano-target", "nano-draft")


def test_the_kits_prompts_have_at_least_six_classes_of_eight() -> None:
    prompts = load_prompts()
    kinds = [p.kind for p in prompts]
    assert len(set(kinds)) >= 6
    assert all(kinds.count(kind) >= 8 for kind in set(kinds))
    assert len({p.id for p in prompts}) == len(prompts)
    assert len({p.kind for p in prompts[: len(set(kinds))]}) == len(set(kinds)), "classes are interleaved"


def test_any_json_lines_file_is_a_prompt_set(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"turns": ["b", "c"], "category": "x"}\n')
    found = load_prompts(file)
    assert [(p.kind, p.turns) for p in found] == [("all", ("a",)), ("x", ("b", "c"))]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ('{"text": "a"}', "needs `prompt`"),
        ('{"turns": []}', "needs"),
        ("[1]", "needs"),
        ('{"prompt": ""}', "needs"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"prompt": "fine"}) + "\n" + line + "\n")
    with pytest.raises(UsageError, match=says) as error:
        load_prompts(file)
    assert "bad.jsonl:2" in str(error.value)


def test_a_missing_or_empty_prompt_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no prompts here"):
        load_prompts(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UsageError, match="holds no prompts"):
        load_prompts(tmp_path / "empty.jsonl")


def test_drafters_by_name() -> None:
    assert load_pair(NANO[0], "none").drafter is None
    assert isinstance(load_pair(NANO[0], "lookup").drafter, PromptLookup)
    assert isinstance(load_pair(*NANO).drafter, ModelDrafter)
    assert isinstance(load_pair(NANO[0], "lookup+nano-draft").drafter, FirstMatch)


def test_an_unknown_combination_or_model_is_one_clear_error() -> None:
    with pytest.raises(UsageError, match="unknown drafter"):
        load_pair(NANO[0], "guess+nano-draft")
    with pytest.raises(CheckpointError, match="no such model"):
        load_pair(NANO[0], "no_such_draft")


def test_a_draft_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="token"):
        load_pair(NANO[0], "draft")


def test_an_empty_raw_prompt_begins_with_the_beginning_of_text() -> None:
    pair = load_pair(NANO[0], "none")
    assert pair.prompt_ids("", raw=True) == [pair.bos_id]


def test_stop_strings_end_the_text_wherever_token_boundaries_fall() -> None:
    tokenizer = load_pair(NANO[0], "none").tokenizer
    stop = StopStrings(tokenizer, ["lo wo", "\n\n"])
    ids = tokenizer.encode("hello world")
    assert not any(stop(ids[:n]) for n in range(1, len(ids) + 1) if "lo wo" not in tokenizer.decode(ids[:n]))
    assert stop(ids)
    assert stop.cut("hello world") == "hel"
    assert stop.cut("nothing") is None
    with pytest.raises(UsageError, match="must not be empty"):
        StopStrings(tokenizer, [""])
