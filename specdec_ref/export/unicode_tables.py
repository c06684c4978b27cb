"""Character classes for the C++ tokenizer: which code points are letters, numbers and white space.

Python's, Rust's and the regular expression engine's Unicode versions differ, and a tokenizer that knows other letters
splits words elsewhere. So the table is read off the `tokenizers` library itself, which is what the models' users run.

    python -m specdec_ref.export.unicode_tables           writes assets/runtime/core/src/unicode_tables.h
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Regex, pre_tokenizers

from specdec_ref import paths
from specdec_ref.files import atomic_file

_CLASSES = {"kLetter": r"\p{L}", "kNumber": r"\p{N}", "kSpace": r"\s"}
_BLOCK = 4096


def table() -> str:
    """The header's text: ascending ranges of code points with their class; all others are `kOther`."""
    kinds: dict[int, str] = {}
    for name, pattern in _CLASSES.items():
        kinds |= dict.fromkeys(_matching(pattern), name)
    # `Digits` asks Rust, which knows more recent numbers than the regular expressions do.
    for code in _numeric():
        kinds.setdefault(code, "kNewNumber")
    lines = [f"    {{0x{first:X}, 0x{last:X}, CharClass::{kind}}}," for first, last, kind in _ranges(kinds)]
    return (
        "// Made by `python -m specdec_ref.export.unicode_tables`; not to be edited.\n"
        "#pragma once\n\n"
        '#include "specdec/pretokenizer.h"\n\n'
        "namespace specdec {\n\n"
        "struct CharRange {\n  std::uint32_t first, last;\n  CharClass kind;\n};\n\n"
        "// clang-format off\n"
        "inline constexpr CharRange kCharRanges[] = {\n"
        + "\n".join(lines)
        + "\n};\n// clang-format on\n\n}  // namespace specdec\n"
    )


def _characters() -> Iterator[tuple[int, str]]:
    """Blocks of all code points but surrogates: the first one's position in `_CODES`, and the text."""
    for start in range(0, len(_CODES), _BLOCK):
        yield start, "".join(map(chr, _CODES[start : start + _BLOCK]))


_CODES = [code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]


def _matching(pattern: str) -> list[int]:
    splitter = pre_tokenizers.Split(Regex(pattern), "removed")
    found = set(range(len(_CODES)))
    for start, text in _characters():
        for _, (begin, end) in splitter.pre_tokenize_str(text):
            found.difference_update(range(start + begin, start + end))
    return [_CODES[index] for index in sorted(found)]


def _numeric() -> list[int]:
    digits = pre_tokenizers.Digits(individual_digits=True)
    # Between two letters, a character that is no digit stays with them.
    return [code for code in _CODES if digits.pre_tokenize_str(f"a{chr(code)}a")[0][0] == "a"]


def _ranges(kinds: dict[int, str]) -> Iterator[tuple[int, int, str]]:
    first = last = -2
    kind = ""
    for code in sorted(kinds):
        if code != last + 1 or kinds[code] != kind:
            if kind:
                yield first, last, kind
            first, kind = code, kinds[code]
        last = code
    yield first, last, kind


if __name__ == "__main__":
    with atomic_file(paths.assets() / "runtime" / "core" / "src" / "unicode_tables.h") as part:
        part.write_text(table(), encoding="utf-8")
