"""Small random models as quantization sees them: tensors by name, with the outlier channels that real models have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specdec_ref.quantization.source import Source
from specdec_ref.quantization.tensors import HEAD_IDS, tensor_shapes


def tiny_raw(**changes: Any) -> dict[str, Any]:
    """A config.json with grouped queries and widths that groups of 32 divide."""
    return {
        "model_type": "llama",
        "vocab_size": 97,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        **changes,
    }


def tiny_source(seed: int = 0, **changes: Any) -> Source:
    """A random model; a few channels behind each norm are 10 times larger than the rest, as trained models have them."""
    raw = tiny_raw(**changes)
    source = Source("tiny", raw, {})
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(source.config).items():
        noise = torch.randn(shape, generator=generator)
        if name == HEAD_IDS:
            tensors[name] = torch.arange(0, 3 * shape[0], 3, dtype=torch.int32)
        elif len(shape) == 1:
            tensors[name] = (0 if name.endswith("bias") else 1) + 0.1 * noise
            if name.endswith("layernorm.weight"):
                tensors[name][::13] *= 10
        else:
            tensors[name] = noise * (3.0 if "embed" in name or "head" in name else 1.0) * shape[1] ** -0.5
    return Source("tiny", raw, tensors)


def write_folder(source: Source, folder: Path) -> Path:
    """Write a source as an ordinary model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(source.raw))
    save_file(dict(source.tensors), folder / "model.safetensors")
    for name, data in source.files.items():
        (folder / name).write_bytes(data)
    return folder


def random_texts(count: int = 6, tokens: int = 40, vocab: int = 97, seed: int = 1) -> list[list[int]]:
    """Token sequences to calibrate and compare on."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab, (count, tokens), generator=generator).tolist()
