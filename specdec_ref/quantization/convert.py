"""From a model to a quantized file, one layer in memory at a time."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specdec_ref.errors import CheckpointError
from specdec_ref.files import atomic_file
from specdec_ref.quantization.awq import Inputs, adjusted_layers, rounded_layers
from specdec_ref.quantization.container import SealedWriter
from specdec_ref.quantization.feedback import quantize_with_feedback
from specdec_ref.quantization.file import COMPANION, FORMAT, VERSION
from specdec_ref.quantization.grid import quantize
from specdec_ref.quantization.recipe import CODES, MINIMUM, SCALE, Recipe, layout_bytes
from specdec_ref.quantization.source import Source
from specdec_ref.quantization.tensors import LAYERS, layer_prefix, tensor_shapes

_ROWS = 4096
"""Rows of an embedding quantized at a time: its float32 form in one piece would be most of the memory."""

Progress = Callable[[int, int], None]
"""Called with the number of layers done and their total."""


@dataclass(frozen=True)
class Report:
    """What a quantized file came to.

    Attributes:
        path: the file.
        file_bytes: its size.
        weight_bytes: of which weights, scales and norms.
        bits_per_weight: `weight_bytes` over the number of parameters.
    """

    path: Path
    file_bytes: int
    weight_bytes: int
    bits_per_weight: float


def quantize_to_file(
    source: Source,
    recipe: Recipe,
    out: Path,
    *,
    calibration: Sequence[Sequence[int]] = (),
    known: dict[int, dict[str, Inputs]] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Quantize a model into one file; whatever stood at `out` stays if anything goes wrong.

    Args:
        source: the model.
        recipe: what to do to it.
        out: the file to write.
        calibration: token sequences for AWQ and GPTQ; not used by plain rounding.
        known: statistics of the calibration texts by layer, filled in here and used again; see `awq.adjusted_layers`.
        progress: told about every finished layer.

    Raises:
        UsageError: a group does not divide, or AWQ has no calibration text.
        CheckpointError: the source is damaged, holds NaN, or the file cannot be written.
    """
    config = source.config
    weights = recipe.layout(config)
    files = {COMPANION + name: _bytes(zlib.compress(data, 9)) for name, data in source.files.items()}
    layout = weights | {name: (torch.uint8, tuple(data.shape)) for name, data in files.items()}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "config": json.dumps(source.raw, sort_keys=True),
        "recipe": json.dumps(recipe.to_json(), sort_keys=True),
        "source": source.name,
        "tokenizer_sha256": source.tokenizer_sha256 or "",
    }
    layers = (
        rounded_layers(source)
        if recipe.method == "rtn"
        else adjusted_layers(source, recipe, calibration, known)
    )
    with atomic_file(out, needs=layout_bytes(layout)) as part, SealedWriter(part, layout, metadata) as writer:
        for name, data in files.items():
            writer.write(name, data)
        for name in tensor_shapes(config):
            if not name.startswith(LAYERS):
                _write(writer, recipe, name, source.take(name))
        for index, layer in enumerate(layers):
            for name, tensor in layer.tensors.items():
                gram = layer.grams.get(name) if recipe.method == "awq-gptq" else None
                _write(writer, recipe, layer_prefix(index) + name, tensor, layer.clips.get(name), gram)
            if progress is not None:
                progress(index + 1, config.num_hidden_layers)
    parameters = sum(torch.Size(shape).numel() for shape in tensor_shapes(config).values())
    held = layout_bytes(weights)
    return Report(out, out.stat().st_size, held, 8 * held / parameters)


def _write(
    writer: SealedWriter,
    recipe: Recipe,
    name: str,
    tensor: Tensor,
    clip: Tensor | None = None,
    gram: Tensor | None = None,
) -> None:
    scheme = recipe.scheme_of(name, tuple(tensor.shape))
    if scheme is None:
        plain = tensor.to(recipe.plain_dtype(name, tuple(tensor.shape)))
        if plain.is_floating_point() and not torch.isfinite(plain).all():
            raise CheckpointError(f"holds NaN, infinity or what {plain.dtype} cannot hold", where=name)
        writer.write(name, plain)
        return
    for first in range(0, len(tensor), _ROWS):
        rows = slice(first, first + _ROWS)
        share = None if clip is None else clip[rows]
        if gram is None:
            part = quantize(tensor[rows], scheme, clip=share, where=name)
        else:
            part = quantize_with_feedback(tensor[rows], gram, scheme, clip=share, where=name)
        writer.write_rows(name + CODES, first, part.packed())
        writer.write_rows(name + SCALE, first, part.scale)
        if part.minimum is not None:
            writer.write_rows(name + MINIMUM, first, part.minimum)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
