"""What a .pte of this kit says about itself: one JSON object, returned by its method `specdec_metadata`.

`assets/runtime/executorch` reads it before it makes the KV pool; `FORMAT` is raised when a key changes its meaning.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from typing import Any

from torch import nn

from specdec_ref.export.executorch.graph import Graph
from specdec_ref.export.executorch.linear import FloatLinear, Precision, QuantLinear

METHOD = "specdec_metadata"
FORMAT = 1


def describe(
    graph: Graph,
    *,
    name: str,
    source: str,
    body: Precision,
    head: Precision,
    context: int,
    max_tokens: int,
    max_rows: int,
    head_ids: list[int] | None,
    tokenizer_sha256: str | None,
    calls: dict[str, Any],
) -> dict[str, Any]:
    """The metadata of an exported graph.

    Args:
        graph: what is exported.
        name: the model's short name.
        source: what `checkpoints.load` takes to load the same model again.
        body: precision of the layers.
        head: precision of the output head.
        context: most positions.
        max_tokens: most tokens of one pass.
        max_rows: most rows of logits of one pass.
        head_ids: tokens of a reduced head's rows, ascending.
        tokenizer_sha256: fingerprint of the tokenizer that the ids belong to.
        calls: what the program calls, see `lower.calls_of`.
    """
    c = graph.config
    return {
        "format": FORMAT,
        "name": name,
        "source": source,
        "kit_version": _version("specdec_ref"),
        "executorch_version": _version("executorch"),
        "torch_version": _version("torch"),
        "precision": body.name,
        "head_precision": head.name,
        "embedding_precision": "fp32" if graph.embed.scale is None else "int8",
        "weight_bytes": sum(stored_bytes(module) for module in graph.modules()),
        "weights_sha256": fingerprint(graph),
        "tokenizer_sha256": tokenizer_sha256,
        "vocab_size": c.vocab_size,
        "head_rows": graph.head_rows,
        "head_ids": head_ids,
        "context": context,
        "layers": c.num_hidden_layers,
        "kv_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "cache_dtype": "float32",
        "max_tokens": max_tokens,
        "max_rows": max_rows,
        **calls,
    }


def stored_bytes(module: nn.Module) -> int:
    """Bytes of one linear layer's weights and scales in the file (0 for any other module): what every pass reads."""
    if isinstance(module, FloatLinear):
        return module.weight.nbytes
    if not isinstance(module, QuantLinear):
        return 0
    four_bit = module.bits == 4  # two codes a byte, scales in bfloat16
    return module.codes.numel() // (2 if four_bit else 1) + module.scale.numel() * (2 if four_bit else 4)


def fingerprint(module: nn.Module) -> str:
    """SHA-256 over every weight, code and scale, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _version(package: str) -> str:
    from specdec_ref import __version__

    return __version__ if package == "specdec_ref" else version(package)
