"""The C++ core is built, passes its own tests in three builds, and agrees with the Python reference on everything shared."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, pre_tokenizers

from specdec_ref import paths
from specdec_ref.checkpoints import LoadedModel
from specdec_ref.errors import CacheError
from specdec_ref.export import unicode_tables
from specdec_ref.kv_pool import ArenaSpec, layout
from specdec_ref.tokenizer import Tokenizer

pytestmark = [pytest.mark.mobile, pytest.mark.timeout(1500)]

SOURCE = Path(__file__).parent / "core"
BUILD = Path(__file__).resolve().parents[2] / "build"
NANO = paths.assets() / "models" / "nano-target" / "tokenizer.json"


def tool(name: str) -> str:
    """A program of the environment, or else of the system."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    assert found, f"{name} is missing: `make setup` installs it"
    return found


def run(*command: str | Path, stdin: str | None = None) -> str:
    done = subprocess.run([*map(str, command)], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{' '.join(map(str, command))}\n{done.stdout[-8000:]}\n{done.stderr[-8000:]}"
    )
    return done.stdout


def has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++"))


@functools.cache
def built(kind: str, *options: str) -> Path:
    """Folder of the core and its tests, built with these CMake options; later builds only redo what changed."""
    assert has_compiler(), "no C++ compiler: install g++ or clang (Debian, Ubuntu: sudo apt install g++)"
    folder = BUILD / f"core-{kind}"
    run(tool("cmake"), "-S", SOURCE, "-B", folder, "-DSPECDEC_WERROR=ON", *options)
    run(tool("cmake"), "--build", folder, "--parallel", str(os.cpu_count() or 1))
    return folder


def release() -> Path:
    return built("release", "-DCMAKE_BUILD_TYPE=Release")


def ctest(folder: Path) -> None:
    report = run(tool("ctest"), "--test-dir", folder, "--output-on-failure", "--no-tests=error")
    assert "100% tests passed" in report


def test_core_passes_its_tests() -> None:
    ctest(release())


def test_core_passes_its_tests_under_sanitizers() -> None:
    ctest(built("sanitized", "-DCMAKE_BUILD_TYPE=Debug", "-DSPECDEC_SANITIZE=ON"))


def test_core_passes_its_tests_on_a_phones_processor() -> None:
    compilers, emulator = [f"aarch64-linux-gnu-{name}" for name in ("gcc", "g++")], "qemu-aarch64-static"
    missing = [name for name in (*compilers, emulator) if shutil.which(name) is None]
    if missing:
        absent = f"{', '.join(missing)} not found: apt install g++-aarch64-linux-gnu qemu-user-static"
        assert not os.environ.get("CI"), (
            absent
        )  # a person may do without; CI that skipped a platform would not say so
        pytest.skip(absent)
    folder = built(
        "aarch64",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_C_COMPILER={compilers[0]}",
        f"-DCMAKE_CXX_COMPILER={compilers[1]}",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
        f"-DCMAKE_CROSSCOMPILING_EMULATOR={emulator}",
    )
    ctest(folder)


# --- the same layout


def cpp_layout(specs: Sequence[ArenaSpec]) -> dict[str, Any]:
    described = json.dumps([dataclasses.asdict(spec) for spec in specs])
    answer: dict[str, Any] = json.loads(run(release() / "core_probe", "layout", stdin=described))
    return answer


def test_both_languages_lay_the_pool_out_alike() -> None:
    numbers = random.Random(7)
    for _ in range(25):
        specs = [
            ArenaSpec(
                f"arena {index}",
                numbers.randint(1, 40),
                numbers.randint(1, 9),
                numbers.randint(1, 5000),
                numbers.randint(1, 130),
                numbers.choice(["float64", "float32", "float16", "bfloat16"]),
            )
            for index in range(numbers.randint(1, 3))
        ]
        assert cpp_layout(specs) == layout(specs)


@pytest.mark.parametrize(
    "specs",
    [
        [ArenaSpec("x", 1, 1, 8, 8, kind="recurrent")],
        [ArenaSpec("x", 1, 1, 8, 8, kind="sliding_window", window=7)],
        [ArenaSpec("x", 1, 1, 0, 8)],
        [ArenaSpec("x", 1, 1, 8, 8), ArenaSpec("x", 1, 1, 8, 8)],
        [],
    ],
)
def test_both_languages_refuse_alike(specs: list[ArenaSpec]) -> None:
    with pytest.raises(CacheError) as error:
        layout(specs)
    assert error.value.what in cpp_layout(specs)["error"]


# --- the same ids


def cpp_ids(tokenizer_json: Path, texts: Sequence[str], *, parse_special: bool) -> list[list[int]]:
    asked = json.dumps({"texts": list(texts), "parse_special": parse_special})
    answer: list[list[int]] = json.loads(run(release() / "core_probe", "encode", tokenizer_json, stdin=asked))
    return answer


def kit_texts() -> list[str]:
    """Hard texts, all prompts, and random mixtures of what patterns distinguish."""
    folder = paths.assets() / "prompts"
    texts = [entry["text"] for entry in json.loads((folder / "hard_text.json").read_text(encoding="utf-8"))]
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            texts += [entry["prompt"]] if "prompt" in entry else entry["turns"]
    numbers = random.Random(3)
    atoms = [" ", "  ", "\n", "\r\n", "\t", "\u3000", "a", "Zoë", "’", "'", "'s", "'LL", "'ſ", "12", "7", "½"]
    atoms += [
        "٣",
        "\U00011de0",
        "Ⅷ",
        "!?",
        "é",
        "e\u0301",
        "👍🏽",
        "日本",
        "\u200b",
        "\x00",
        "\x85",
        "<|im_end|>",
    ]
    texts += ["".join(numbers.choices(atoms, k=numbers.randint(1, 12))) for _ in range(1500)]
    assert len(texts) > 1600
    return texts


def assert_same_ids(tokenizer: Tokenizer, tokenizer_json: Path, texts: Sequence[str]) -> None:
    for parse_special in (False, True):
        found = cpp_ids(tokenizer_json, texts, parse_special=parse_special)
        for text, ids in zip(texts, found, strict=True):
            assert ids == tokenizer.encode(text, parse_special), repr(text)


def test_nano_ids_are_pythons() -> None:
    assert_same_ids(Tokenizer.from_folder(NANO.parent), NANO, kit_texts())


@pytest.mark.slow
def test_smollm2_ids_are_pythons(smollm2: LoadedModel) -> None:
    assert smollm2.tokenizer is not None
    assert_same_ids(smollm2.tokenizer, smollm2.folder / "tokenizer.json", kit_texts())


@pytest.mark.parametrize("numbers", [r"\p{N}{1,3}", r"\p{N}"], ids=["llama 3", "qwen 2"])
@pytest.mark.parametrize("ignore_merges", [False, True])
def test_ids_under_the_pattern_of_newer_families_are_pythons(
    numbers: str, ignore_merges: bool, tmp_path: Path
) -> None:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + numbers
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    backend = tokenizers.Tokenizer.from_file(str(NANO))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.model.ignore_merges = ignore_merges
    file = tmp_path / "tokenizer.json"
    backend.save(str(file))
    assert_same_ids(Tokenizer.from_folder(tmp_path), file, kit_texts())


def test_character_classes_are_those_of_the_tokenizers_library() -> None:
    header = paths.assets() / "runtime" / "core" / "src" / "unicode_tables.h"
    assert header.read_text(encoding="utf-8") == unicode_tables.table(), (
        "make it anew: python -m specdec_ref.export.unicode_tables"
    )
