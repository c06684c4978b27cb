"""GGUF files of other kinds, damaged ones, and what a sound one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_ref import checkpoints
from specdec_ref.checkpoints.gguf_file import GGUFFile
from specdec_ref.errors import UsageError
from tests.helpers import tiny_gguf
from tests.helpers.errors import error_of


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"architecture": "gpt2"}, "unsupported GGUF architecture 'gpt2'"),
        ({"pre": "new"}, "unsupported GGUF tokenizer 'gpt2'/'new'"),
    ],
)
def test_gguf_files_of_other_kinds_are_refused(
    tmp_path: Path, options: dict[str, str], complaint: str
) -> None:
    tiny_gguf.write_gguf(tmp_path / "x.gguf", tiny_gguf.oracle(), **options)
    assert complaint in error_of(lambda: GGUFFile(tmp_path / "x.gguf").tokenizer())


def test_damaged_gguf_files_are_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    tiny_gguf.write_gguf(path, tiny_gguf.oracle())
    whole = path.read_bytes()
    for content in (
        b"",
        b"GGUF",
        b"not a gguf file at all",
        whole[:100],
        whole[:5000],
        whole[: len(whole) // 2],
    ):
        path.write_bytes(content)
        message = error_of(lambda: GGUFFile(path))
        assert message.startswith(f"{path}: cannot be read as GGUF") and message.endswith(
            "(take a sound copy)"
        )


def test_an_untied_gguf_model_brings_its_own_head(tmp_path: Path) -> None:
    tiny_gguf.write_gguf(tmp_path / "x.gguf", tiny_gguf.oracle(tied=False))
    file = GGUFFile(tmp_path / "x.gguf")
    assert file.config()["tie_word_embeddings"] is False
    assert "lm_head.weight" in dict(file.tensors())
    assert file.config()["rms_norm_eps"] == 1e-5, "the shortest decimal of the stored float32"


def test_gguf_of_an_unknown_name() -> None:
    with pytest.raises(UsageError, match=r"no embedded model is called 'x' \(there are: smollm2-135m"):
        checkpoints.gguf("x")
