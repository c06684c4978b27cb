"""`specdec export executorch`: a model as a .pte, ExecuTorch's program file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specdec_ref.checkpoints import LoadedModel
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.export.executorch import lower, metadata
from specdec_ref.export.executorch.graph import Graph
from specdec_ref.export.executorch.linear import precision as precision_named
from specdec_ref.files import atomic_file
from specdec_ref.quiet import quiet_libraries
from specdec_ref.tokenizer import Tokenizer

LARGEST_CONTEXT = 32768
"""Rows of the rotary table at most; 16 MB at 64 values per head."""


@dataclass(frozen=True)
class Options:
    """How to export.

    Attributes:
        precision: "fp32", "int8" (a scale per row) or "int4" (a scale per 32 weights); activations of the latter two are
            rounded to 8 bit, token by token, inside XNNPACK. The embedding table is then 8-bit too.
        head_precision: of the output head; None: as `precision`.
        context: most positions; a pool of fewer is taken as well. Clipped to what the model was trained for.
    """

    precision: str = "fp32"
    head_precision: str | None = None
    context: int = 2048


def build_graph(loaded: LoadedModel, tokenizer: Tokenizer | None, options: Options) -> Graph:
    """Return the graph that is exported: run as it is, it is the (fake-quantised) reference of the artefact.

    Raises:
        UsageError: an unknown precision, or a context that is not positive.
        CheckpointError: the model is not in float32.
    """
    if not 1 < options.context <= LARGEST_CONTEXT:
        raise UsageError(f"a context of 2 to {LARGEST_CONTEXT} tokens can be exported, not {options.context}")
    model = loaded.model
    if model.dtype != torch.float32:
        raise CheckpointError(f"the model is in {model.dtype}", where=loaded.name, fix="load it in float32")
    body = precision_named(options.precision)
    head = precision_named(options.head_precision or options.precision)
    context = min(options.context, model.config.max_position_embeddings)
    rows = None
    if model.head_ids is None and tokenizer is not None:
        rows = min(model.config.vocab_size, tokenizer.vocab_size)
    with quiet_libraries(), torch.no_grad():
        if not (body.is_float and head.is_float):
            import torchao.quantization  # noqa: F401  (it has a lot to say when it is first imported)
        graph = Graph(model, context, body, head, embedding_int8=not body.is_float, rows=rows)
    return graph.eval().requires_grad_(False)


def write_executorch(
    path: Path, loaded: LoadedModel, tokenizer: Tokenizer | None, options: Options, *, source: str
) -> dict[str, Any]:
    """Export a model for XNNPACK with its KV cache outside, in the pool.

    Args:
        path: the file to write; it appears when it is complete.
        loaded: the model, in float32.
        tokenizer: the one that its ids belong to; rows of the head beyond its tokens are left out.
        options: precision and context.
        source: what `checkpoints.load` takes to load the same model again, noted in the file for `specdec check`.

    Returns:
        the metadata in the file.

    Raises:
        SpecdecError: bad options, a model that cannot be expressed, an ExecuTorch of another version, a full disk.
    """
    graph = build_graph(loaded, tokenizer, options)
    context = graph.cos.shape[0]
    head_ids = loaded.model.head_ids
    with quiet_libraries(), torch.no_grad():
        program = lower.to_edge(lower.trace(lower.lower_pieces(graph), context))
        described = metadata.describe(
            graph,
            name=loaded.name,
            source=source,
            body=precision_named(options.precision),
            head=precision_named(options.head_precision or options.precision),
            context=context,
            max_tokens=lower.MAX_TOKENS,
            max_rows=lower.MAX_ROWS,
            head_ids=None if head_ids is None else head_ids.tolist(),
            tokenizer_sha256=None if tokenizer is None else tokenizer.fingerprint,
            calls=lower.calls_of(graph, program),
        )
        with atomic_file(path) as part:
            lower.write(part, program, described)
    return described
