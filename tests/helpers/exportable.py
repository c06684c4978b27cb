"""Tiny random models that XNNPACK's kernels take (widths that are whole groups of 32), and the native tools, built once."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specdec_ref import paths
from specdec_ref.checkpoints import LoadedModel
from specdec_ref.export.executorch.native import cmake_folder
from specdec_ref.model import Decoder, ModelConfig
from tests.helpers.tiny_tokenizer import tiny_tokenizer, tokens

BUILD = Path(__file__).resolve().parents[2] / "build" / "executorch-tests"

PADDING = 5
"""Rows of the embedding beyond the tokenizer's tokens, as real checkpoints have."""


def exportable(seed: int, *, head_ids: list[int] | None = None, **changes: Any) -> LoadedModel:
    """Three layers, 4 heads on 2 key heads of width 16, random weights; `changes` are fields of `ModelConfig`."""
    config = replace(
        ModelConfig(
            vocab_size=len(tokens()) + PADDING,
            hidden_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=96,
            max_position_embeddings=640,
            head_rows=None if head_ids is None else len(head_ids),
        ),
        **changes,
    )
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(config)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_gain = "norm" in name
        parameter.data = noise * (0.1 if is_gain else 1.2 * parameter.shape[-1] ** -0.5) + is_gain
    if head_ids is not None:
        model.head_ids = torch.tensor(head_ids)
    return LoadedModel(
        model.eval(), tiny_tokenizer(), (2,), 1, "tiny", "a test", Path("tiny"), {"target": "tiny"}
    )


@functools.cache
def native_tools() -> Path:
    """Folder of `specdec_pte` and `specdec_native`; only what changed is compiled again."""
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cmake = shutil.which("cmake", path=search)
    assert cmake, "cmake is missing: `make setup` installs it"
    source = paths.assets() / "runtime" / "executorch"
    for command in (
        [
            "-S",
            str(source),
            "-B",
            str(BUILD),
            "-DCMAKE_BUILD_TYPE=Release",
            f"-Dexecutorch_DIR={cmake_folder()}",
        ],
        ["--build", str(BUILD), "--parallel", str(os.cpu_count() or 1)],
    ):
        done = subprocess.run([cmake, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    return BUILD
