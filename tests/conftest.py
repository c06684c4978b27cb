"""Fixtures for every test: the real models, loaded once, and a home folder that is nobody's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Nothing in this suite asks the hub; a test that tries by mistake fails at once instead of downloading.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from specdec_ref.checkpoints import LoadedModel, load


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct in float32, fetched on first use: mark tests `slow`, and do not change its weights."""
    return load("smollm2-135m", quiet=True)


@pytest.fixture(scope="session")
def draft() -> LoadedModel:
    """The committed draft in float32."""
    return load("draft")


THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One torch thread: tiny models run best on it, and two that wait for a busy core are ten times slower than one."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(THREADS)


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh `SPECDEC_HOME`, no wheel folder, and a pip that has no index."""
    home = tmp_path / "home"
    monkeypatch.setenv("SPECDEC_HOME", str(home))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("SPECDEC_WHEEL_DIR", raising=False)
    return home
