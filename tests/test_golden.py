"""The golden vectors: well-formed, up to date, complete, and as their README says."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specdec_ref import paths
from specdec_ref.errors import CheckpointError, SpecdecError
from specdec_ref.golden import __main__ as command
from specdec_ref.golden import generate
from specdec_ref.golden.content import count_cases, differences, dump, float32_list, row, sha256
from specdec_ref.golden.margins import LEAST_GAP, accept_margin, cut_margin, draw_margin, top_gap
from specdec_ref.golden.primitives import as_row
from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.sampling import Sampling

GOLDEN = paths.assets() / "golden"
MODELS = paths.assets() / "models"
SCHEMA = GOLDEN / generate.SCHEMA
VECTORS = ["philox", "draw", "processors", "acceptance", "verifiers", "lookup", "policies", "traces"]
FILES = [*VECTORS, "tokenizer_nano", "manifest"]

Content = dict[str, Any]


def load(name: str) -> Content:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def fresh() -> dict[str, Content]:
    """Everything computed anew, once for all tests here."""
    return generate.vectors(MODELS)


@pytest.fixture
def recomputed(fresh: dict[str, Content], monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator's answer without its minutes."""
    monkeypatch.setattr(generate, "vectors", lambda models, **_: copy.deepcopy(fresh))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the committed files that a test may spoil."""
    for file in GOLDEN.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(folder: Path, name: str, edit: Callable[[Content], None]) -> None:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    edit(content)
    (folder / name).write_text(dump(content), encoding="utf-8")


# --- form


@pytest.mark.parametrize("name", FILES)
def test_every_file_follows_the_schema(name: str) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    content = load(name)
    assert content["kind"] == name
    assert [error.message for error in validator.iter_errors(content)] == []


def test_schema_is_a_schema_and_refuses_what_it_does_not_know() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name, edit in {
        "draw": lambda c: c["cases"][0].update(extra=1),
        "acceptance": lambda c: c["cases"][0].update(u_accept=1.0),
        "traces": lambda c: c["cases"][0]["expected"].update(finish_reason="tired"),
        "philox": lambda c: c["blocks"][0]["words"].append(1),
        "policies": lambda c: c["cases"][0]["policy"].update(type="hope"),
    }.items():
        content = load(name)
        edit(content)
        assert not validator.is_valid(content), name


def test_folder_holds_these_files_and_no_others() -> None:
    assert {file.name for file in GOLDEN.iterdir()} == {f"{name}.json" for name in FILES} | {
        "schema.json",
        "README.md",
    }


@pytest.mark.parametrize("name", [*FILES, "schema"])
def test_files_are_plain_ascii_json_laid_out_by_the_generator(name: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    data = (GOLDEN / f"{name}.json").read_bytes()
    assert data.isascii()
    assert dump(json.loads(data, parse_constant=refuse)) == data.decode()


def test_readme_names_every_file() -> None:
    text = (GOLDEN / "README.md").read_text(encoding="utf-8")
    for name in [*FILES, "schema"]:
        assert f"`{name}.json`" in text


def test_manifest_matches_the_files() -> None:
    entries = load("manifest")["files"]
    assert set(entries) == {f"{name}.json" for name in [*FILES, "schema"]} - {"manifest.json"}
    for file, entry in entries.items():
        content = json.loads((GOLDEN / file).read_text(encoding="utf-8"))
        assert entry["sha256"] == sha256(content), file
        if file != "schema.json":
            assert entry["cases"] == count_cases(content) > 0, file


def test_hash_covers_content_not_layout() -> None:
    content = {"b": [1, 0.5, None], "a": "é"}
    expected = hashlib.sha256(b'{"a":"\\u00e9","b":[1,0.5,null]}').hexdigest()
    assert sha256(content) == sha256(json.loads(json.dumps(content, indent=4))) == expected


# --- up to date


@pytest.mark.slow
def test_check_finds_everything_up_to_date(recomputed: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--check"]) == 0
    assert "are up to date" in capsys.readouterr().out


@pytest.mark.slow
def test_regenerating_keeps_every_byte(recomputed: None, folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert generate.generate(folder, MODELS, SCHEMA) == []
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.slow
def test_generating_into_an_empty_folder_gives_the_committed_content(
    recomputed: None, tmp_path: Path
) -> None:
    out = tmp_path / "golden"
    assert len(generate.generate(out, MODELS, SCHEMA)) == len(FILES) + 1
    for name in set(FILES) - {"processors", "manifest"}:  # processors: within its tolerance only
        assert (out / f"{name}.json").read_bytes() == (GOLDEN / f"{name}.json").read_bytes()


TAMPERINGS: dict[str, tuple[str, Callable[[Content], Any]]] = {
    "a token": ("traces.json", lambda c: c["cases"][3]["expected"]["tokens"].__setitem__(2, 7)),
    "a decision": ("acceptance.json", lambda c: c["cases"][0].update(accepted=False)),
    "a last bit": (
        "philox.json",
        lambda c: c["uniforms"][4].update(uniform=math.nextafter(c["uniforms"][4]["uniform"], 1)),
    ),
    "a probability": ("processors.json", lambda c: c["cases"][3]["probabilities"].__setitem__(0, 0.2)),
    "a dropped token": ("processors.json", lambda c: c["cases"][10]["probabilities"].__setitem__(1, 1e-9)),
    "a missing case": ("draw.json", lambda c: c["cases"].pop()),
    "a missing key": ("lookup.json", lambda c: c["cases"][0].pop("name")),
    "a hash": ("manifest.json", lambda c: c["files"]["draw.json"].update(sha256="0" * 64)),
    "the weights' hash": ("manifest.json", lambda c: c["models"]["nano-draft"].update(sha256="0" * 64)),
    "the schema": ("schema.json", lambda c: c.update(title="another")),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", TAMPERINGS)
def test_check_catches(what: str, recomputed: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, edit = TAMPERINGS[what]
    change(folder, name, edit)
    assert command.main(["--check", "--out", str(folder)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"golden: {name}: "), error


@pytest.mark.slow
def test_generating_repairs_only_what_was_spoilt(recomputed: None, folder: Path) -> None:
    change(folder, "draw.json", lambda c: c["cases"][0].update(token=3))
    assert generate.generate(folder, MODELS, SCHEMA) == ["draw.json"]
    assert (folder / "draw.json").read_bytes() == (GOLDEN / "draw.json").read_bytes()


@pytest.mark.slow
def test_check_accepts_another_processor_s_rounding_of_probabilities(recomputed: None, folder: Path) -> None:
    def nudge(content: Content) -> None:
        for case in content["cases"]:
            case["probabilities"] = [p and p - 4e-7 * (p > 0.5) for p in case["probabilities"]]

    change(folder, "processors.json", nudge)
    nudged = (folder / "processors.json").read_bytes()
    assert nudged != (GOLDEN / "processors.json").read_bytes()
    assert generate.generate(folder, MODELS, SCHEMA) == ["manifest.json"]
    assert (folder / "processors.json").read_bytes() == nudged
    assert generate.check(folder, MODELS, SCHEMA)


@pytest.mark.slow
def test_a_missing_file_is_named(recomputed: None, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "draw.json").unlink()
    assert command.main(["--check", "--out", str(folder)]) == 1
    assert "draw.json: the file is missing" in capsys.readouterr().err


def test_bad_use_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        command.main(["everything"])
    assert exit.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_missing_pair_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"specdec_ref\.golden nano"):
        generate.vectors(tmp_path)


# --- the tools


def test_float32_values_survive_being_written_and_read() -> None:
    values = as_row(range(1, 1000))
    written = json.loads(json.dumps(float32_list(values)))
    assert row(written).equal(values)
    assert float32_list(row([None, 0.1])) == [None, 0.1]


def test_differences_name_the_place() -> None:
    old = {"a": [1, {"b": 2}], "probabilities": [0.5, 0.0]}
    assert list(differences(old, copy.deepcopy(old))) == []
    assert list(differences(old, {"a": [1, {"b": 3}], "probabilities": [0.5 + 5e-7, 0.0]})) == [
        "a[1].b: 2 in the file, 3 regenerated"
    ]
    assert list(differences({"n": 1}, {"n": 1.0})) and list(differences({"n": 1}, {"n": True}))


def test_margins_measure_the_distance_to_the_other_decision() -> None:
    logits = row([1.0, 3.0, 2.5, 0.0])
    assert top_gap(logits) == pytest.approx(0.5)
    assert draw_margin(row([0.25, 0.25, 0.5]), 0.45) == pytest.approx(0.05)
    assert draw_margin(row([0.0, 1.0, 0.0]), 0.0) == 1.0
    assert accept_margin(row([0.2, 0.8]), row([0.5, 0.5]), 0, 0.3) == pytest.approx(0.1)
    assert cut_margin(logits, Sampling(2.0, top_k=1)) == pytest.approx(0.25)
    p = logits.double().softmax(-1)  # 0.08, 0.56, 0.34, 0.03
    assert cut_margin(logits, Sampling(1.0, top_p=0.6)) == pytest.approx(0.6 - float(p[1]))
    assert cut_margin(logits, Sampling(1.0, min_p=0.5)) == pytest.approx(float(p[2] / p[1]) - 0.5)


def test_a_close_decision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec_ref.golden.traces.LEAST_GAP", 1e3)
    monkeypatch.setattr("specdec_ref.golden.margins.LEAST_GAP", 1e3)
    with pytest.raises(SpecdecError, match="too close to repeat on another processor"):
        generate.vectors(MODELS)
    assert LEAST_GAP == 0.01


def test_seed_in_philox_cases_is_its_key() -> None:
    for case in load("philox")["uniforms"]:
        seed = int(case["seed"])
        assert case["key"] == [seed & 0xFFFFFFFF, seed >> 32]
        purpose = Purpose[case["purpose"].upper()]
        assert Uniforms(seed)(case["round"], case["slot"], purpose) == case["uniform"]


def test_philox_gives_its_authors_known_answers() -> None:
    words = [[f"{word:08x}" for word in block["words"]] for block in load("philox")["blocks"][:3]]
    assert words == [
        ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"],
        ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"],
        ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"],
    ]
