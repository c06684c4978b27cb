"""Text <-> ids: the same as transformers and as a slow reference, no magic in user text, no half characters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from specdec_ref import paths
from specdec_ref.checkpoints import LoadedModel
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.tokenizer import Tokenizer
from tests.helpers.properties import examples
from tests.helpers.slow_bpe import SlowBPE
from tests.helpers.tiny_tokenizer import tiny_tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces,\ttabs\t\tand\n\nnewlines\r\n \n end  ",
    "a  1",
    "pi is 3.14159, 1,000,000 and ½ ² ٣٤ Ⅷ 𝟙𝟚",
    "10\n20\n30",
    "can't won't I'll we've you're it's she'd I'm CAN'T",
    "日本語のテキスト、中文文本，한국어 텍스트",
    "👍🏽 👩‍👩‍👧‍👦 🇺🇸 ❤️ \u200b zero width",
    "naïve café e\u0301 Ångström ﬁ İ ß",
    "مرحبا بالعالم שלום नमस्ते",
    "def f(x):\n    return {'a': x ** 2}  # comment\n",
    "https://example.org/?q=a%20b&c=d#e",
    "<|im_start|>user\nnot a turn<|im_end|><|endoftext|>",
    "< |im_end|> <|im_end| ><|im_end",
    "control \x00\x01\x04\x13\x1f\x7f and private \ue000\U000f0000 and unassigned \U00040000",
    "\ufffd is a character too",
]
MESSAGES = [
    {"role": "user", "content": "Hi! 12  34"},
    {"role": "assistant", "content": "Ho."},
    {"role": "user", "content": "?"},
]


def hard_texts() -> list[str]:
    """The kit's hard texts and this file's own."""
    entries = json.loads((paths.assets() / "prompts" / "hard_text.json").read_text(encoding="utf-8"))
    assert len(entries) > 50
    return TEXTS + [entry["text"] for entry in entries]


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def real(smollm2: LoadedModel) -> Tokenizer:
    assert smollm2.tokenizer is not None
    return smollm2.tokenizer


@pytest.fixture(scope="module")
def oracle(smollm2: LoadedModel) -> Any:
    """transformers' tokenizer over the same files."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(smollm2.folder))


@pytest.mark.slow
class TestRealTokenizer:
    def test_ids_equal_transformers_with_and_without_special_tokens(
        self, real: Tokenizer, oracle: Any
    ) -> None:
        for text in hard_texts():
            assert real.encode(text, parse_special=True) == oracle(text)["input_ids"], text
            assert real.encode(text) == oracle(text, split_special_tokens=True)["input_ids"], text

    def test_ids_equal_a_slow_reference(self, real: Tokenizer, smollm2: LoadedModel) -> None:
        slow = SlowBPE(smollm2.folder / "tokenizer.json")
        for text in hard_texts():
            assert real.encode(text) == slow.encode(text), text

    def test_decoding_equals_transformers(self, real: Tokenizer, oracle: Any) -> None:
        for text in hard_texts():
            ids = real.encode(text, parse_special=True)
            assert real.decode(ids) == oracle.decode(ids), text
            assert real.decode(ids, skip_special=True) == oracle.decode(ids, skip_special_tokens=True), text

    def test_text_survives_unless_it_holds_bytes_the_vocabulary_lacks(self, real: Tokenizer) -> None:
        known = {real.token_bytes(id) for id in range(real.vocab_size)}
        missing = {byte for byte in range(256) if bytes([byte]) not in known}
        assert len(missing) == 21
        assert {0xC0, 0xC1, 0xF5, 0xFF} < missing, "bytes that UTF-8 never uses"
        for text in hard_texts():
            if not missing & set(text.encode()):
                assert real.decode(real.encode(text)) == text

    def test_streams_equal_decode(self, real: Tokenizer) -> None:
        for text in hard_texts():
            assert_stream_equals_decode(real, real.encode(text, parse_special=True))

    @pytest.mark.parametrize("prompt", [True, False])
    def test_chat_equals_transformers(self, real: Tokenizer, oracle: Any, prompt: bool) -> None:
        system = {"role": "system", "content": "Be brief."}
        for messages in (MESSAGES, [system, *MESSAGES], MESSAGES[:1], MESSAGES[:2], [system]):
            expected = oracle.apply_chat_template(messages, add_generation_prompt=prompt)["input_ids"]
            assert real.chat(messages, prompt) == expected
        for text in hard_texts():
            if "<|" not in text:
                messages = [{"role": "user", "content": text}]
                assert (
                    real.chat(messages)
                    == oracle.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
                )

    def test_affixes_render_as_the_template(self, real: Tokenizer) -> None:
        affixes = real.chat_affixes()
        assert affixes.generation == "<|im_start|>assistant\n"
        system = {"role": "system", "content": " Be brief.\n"}
        for messages in (MESSAGES, [system, *MESSAGES], [system]):
            assert real.encode(affixes.render(messages), parse_special=True) == real.chat(messages)

    def test_named_tokens_and_size(self, real: Tokenizer) -> None:
        assert (real.vocab_size, real.bos_id, real.eos_id) == (49152, 1, 2)
        assert real.special_tokens["<|im_end|>"] == 2 and len(real.special_tokens) == 17

    def test_fingerprint_is_the_one_that_the_draft_names(self, real: Tokenizer, draft: LoadedModel) -> None:
        assert real.fingerprint == draft.tokenizer_sha256


def assert_stream_equals_decode(tokenizer: Tokenizer, ids: list[int], skip_special: bool = False) -> None:
    stream = tokenizer.stream(skip_special=skip_special)
    pieces = [stream.push(id) for id in ids]
    for piece in pieces:
        assert piece.encode().decode() == piece
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids, skip_special=skip_special)


@examples(200)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_survives_and_streams(text: str) -> None:
    ids = TINY.encode(text)
    assert TINY.decode(ids) == text
    stream = TINY.stream()
    pieces = [stream.push(id) for id in ids]
    assert "".join(pieces) == text, "valid text needs no finish()"
    assert stream.finish() == ""


@examples(200)
@given(ids=st.lists(st.integers(0, 300), max_size=20), skip=st.booleans())
def test_any_ids_stream_as_they_decode(ids: list[int], skip: bool) -> None:
    """Also ids that are no valid UTF-8, special tokens and ids beyond the vocabulary."""
    assert_stream_equals_decode(TINY, ids, skip)


TINY = tiny_tokenizer()


def test_a_character_split_over_tokens_appears_whole(tiny: Tokenizer) -> None:
    ids = tiny.encode("👍")
    assert len(ids) == 4
    stream = tiny.stream()
    assert [stream.push(id) for id in ids] == ["", "", "", "👍"]


def test_a_character_cut_off_at_the_end_is_marked_once(tiny: Tokenizer) -> None:
    stream = tiny.stream()
    assert [stream.push(id) for id in tiny.encode("x👍")[:-1]] == ["x", "", "", ""]
    assert stream.finish() == "\ufffd"


def test_a_real_replacement_character_is_not_held_back(tiny: Tokenizer) -> None:
    stream = tiny.stream()
    assert "".join(stream.push(id) for id in tiny.encode("\ufffd")) == "\ufffd"


def test_streams_of_tokenizers_that_are_not_byte_level() -> None:
    """Llama-2's kind: pieces with a space mark, and bytes as <0x..> tokens."""
    vocabulary = {"<unk>": 0, "▁a": 1, "b": 2, "▁c": 3} | {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    D = tokenizers.decoders
    backend.decoder = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
    tokenizer = Tokenizer(backend)
    euro = [4 + byte for byte in "€".encode()]
    for ids in ([1, 2, 3], [1, *euro, 2], [*euro[:2], 3], [1, *euro[:2]], []):
        assert_stream_equals_decode(tokenizer, ids)
    stream = tokenizer.stream()
    assert [stream.push(id) for id in [1, *euro]] == ["a", "", "", "€"]


def test_special_tokens_in_text_are_text_unless_asked(tiny: Tokenizer) -> None:
    text = "a<|im_end|>b"
    assert 2 not in tiny.encode(text)
    assert tiny.decode(tiny.encode(text)) == text
    assert tiny.encode(text, parse_special=True) == [*tiny.encode("a"), 2, *tiny.encode("b")]
    assert 2 not in tiny.encode(text), "asking once must not change the next call"


def test_token_shows_bytes_that_are_no_character(tiny: Tokenizer) -> None:
    assert [tiny.token(id) for id in tiny.encode(" thé👍")] == [
        " ",
        "th",
        "é",
        "\\xf0",
        "\\x9f",
        "\\x91",
        "\\x8d",
    ]
    assert tiny.token(2) == "<|im_end|>"


def test_a_saved_tokenizer_is_the_same(tiny: Tokenizer, tmp_path: Path) -> None:
    tiny.encode("x", parse_special=True)
    tiny.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.content == tiny.content
    assert again.fingerprint == tiny.fingerprint
    assert again.named == tiny.named
    assert again.chat(MESSAGES) == tiny.chat(MESSAGES)
    for text in TEXTS:
        assert again.encode(text) == tiny.encode(text)


def test_transformers_reads_what_save_writes(tiny: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tiny.save(tmp_path)
    oracle = AutoTokenizer.from_pretrained(str(tmp_path))
    for text in TEXTS:
        assert oracle(text)["input_ids"] == tiny.encode(text, parse_special=True), text
    assert oracle.apply_chat_template(MESSAGES)["input_ids"] == tiny.chat(
        MESSAGES, add_generation_prompt=False
    )
    assert oracle.eos_token == "<|im_end|>"


def test_fingerprints_tell_contents_apart() -> None:
    plain = tiny_tokenizer().content
    other = plain["vocabulary"][-1][1]
    renamed = [token if token != other else "zz" for _, token in plain["vocabulary"]]
    different = {
        tiny_tokenizer().fingerprint,
        tiny_tokenizer(merges=[("i", "n"), ("t", "h")]).fingerprint,
        tiny_tokenizer(vocabulary=renamed, merges=[("i", "n")]).fingerprint,
    }
    assert len(different) == 3
    assert tiny_tokenizer(template=None).fingerprint in different, "the chat template is no part of it"


@pytest.mark.parametrize("text", [3, None, b"bytes", ["a"], "half \ud83d pair"])
def test_what_is_no_text_is_refused(tiny: Tokenizer, text: Any) -> None:
    with pytest.raises(
        UsageError, match=r"text to tokenize: (expected text|half of a surrogate pair at position 5)"
    ):
        tiny.encode(text)


def test_a_damaged_or_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing \(take a complete copy"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"only tokenizer\.model is there"):
        Tokenizer.from_folder(tmp_path)
    tiny_tokenizer().save(tmp_path)
    whole = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: cannot be read: .*\(take a sound copy\)$"
    ) as error:
        Tokenizer.from_folder(tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / "tokenizer.json").write_bytes(whole)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: cannot be read as JSON"):
        Tokenizer.from_folder(tmp_path)


def test_padding_and_truncation_settings_of_the_file_are_ignored(tmp_path: Path) -> None:
    tiny_tokenizer().save(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert len(Tokenizer.from_folder(tmp_path).encode("abcdef")) == 6
