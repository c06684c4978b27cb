"""One finished smoke run for all tests of this folder, shortened, with every step in its log."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specdec_ref.distill.data import make_data
from specdec_ref.distill.evaluate import evaluate
from specdec_ref.distill.export import export
from specdec_ref.distill.train import train
from tests.helpers.distill import short_smoke


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run that went through all four stages; models are in `models/`. Read only."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("distill") / "run"
    make_data(short_smoke(), out)
    train(short_smoke(), out)
    evaluate(short_smoke(), out)
    export(out, out / "models")
    return out
