"""From a `Graph` to a .pte: its pieces become XNNPACK calls, the rest ExecuTorch kernels."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specdec_ref.errors import SpecdecError
from specdec_ref.export.executorch.graph import Graph
from specdec_ref.export.executorch.linear import FloatLinear, QuantLinear
from specdec_ref.export.executorch.metadata import METHOD
from specdec_ref.export.executorch.pieces import BACKEND, Template

MAX_TOKENS = 256
"""Most tokens of one pass: a prompt is taken in by chunks of so many."""

MAX_ROWS = 17
"""Most rows of logits of one pass: the core drafts at most 16 tokens."""

_PRODUCTS = ("linear", "mm", "addmm", "bmm", "matmul", "convolution")


def lower_pieces(graph: Graph) -> Graph:
    """Return the graph with every piece replaced by its XNNPACK program. The given graph stays as it is."""
    c = graph.config
    stream, attended = c.hidden_size, c.num_attention_heads * c.head_dim
    lowered = copy.copy(graph)
    lowered._modules = dict(graph._modules)
    lowered.first = Template(graph.first, (stream,), MAX_TOKENS).lower(graph.first)
    if len(graph.middle):
        template = Template(graph.middle[0], (stream, attended), MAX_TOKENS)
        lowered.middle = nn.ModuleList(template.lower(piece) for piece in graph.middle)
    lowered.last = Template(graph.last, (stream, attended), MAX_ROWS).lower(graph.last)
    return lowered


def trace(lowered: Graph, context: int) -> Any:
    """Return the `torch.export.ExportedProgram` of a graph of lowered pieces.

    T, the rows R wanted and the cache's capacity L are free: one program decodes, verifies and takes in prompts, on a pool
    of any size up to `context`.
    """
    c = lowered.config
    cache = torch.zeros(c.num_hidden_layers, c.num_key_value_heads, max(2, min(64, context - 1)), c.head_dim)
    tokens = torch.export.Dim("T", min=1, max=MAX_TOKENS)
    rows = torch.export.Dim("R", min=1, max=MAX_ROWS)
    capacity = torch.export.Dim("L", min=1, max=context)
    inputs = torch.arange(5), torch.tensor([0]), torch.arange(3), cache, cache.clone()
    dynamic = {0: tokens}, None, {0: rows}, {2: capacity}, {2: capacity}
    return torch.export.export(lowered, inputs, dynamic_shapes=dynamic)


def to_edge(program: Any) -> Any:
    """Name the program's few ATen operators as ExecuTorch's edge dialect does, and return the program.

    `executorch.exir.to_edge` would make every mutation explicit first, and at the end copy both whole caches onto
    themselves in each pass. Nothing here needs that: the only operator that writes is ours, and it writes in place.
    """
    from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge

    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target.namespace == "aten" and node.target._opname.startswith("_assert"):
            graph.erase_node(node)
        elif node.target.namespace == "aten":
            node.target = aten_to_edge(node.target)
    program.graph_module.recompile()
    return program


def calls_of(graph: Graph, program: Any) -> dict[str, Any]:
    """What one pass calls: delegates (partitions), other kernels by name, and who does the matrix products.

    Args:
        graph: before its pieces were lowered: its linear layers are the products that there are to do.
        program: the edge program: a product that is still in it is not delegated.

    Returns:
        `delegate_calls`, `kernel_calls`, `linear_macs` per token (all rows wanted), and `delegated_share` of them.
    """
    kernels: Counter[str] = Counter()
    delegates = left = 0
    for node in program.graph_module.graph.nodes:
        if node.op != "call_function":
            continue
        schema = getattr(node.target, "_schema", None)
        if "executorch_call_delegate" in str(node.target):
            delegates += 1
        elif schema is not None:
            kernels[schema.name] += 1
            if schema.name.split("::")[-1] in _PRODUCTS:
                left += int(node.args[1].meta["val"].numel())
    macs = sum(_weights(module) for module in graph.modules())
    return {
        "backend": BACKEND,
        "delegate_calls": delegates,
        "kernel_calls": dict(kernels),
        "linear_macs": macs,
        "delegated_share": (macs - left) / macs,
    }


def _weights(module: nn.Module) -> int:
    if isinstance(module, FloatLinear):
        return module.weight.numel()
    return module.codes.numel() if isinstance(module, QuantLinear) else 0


def write(path: Path, program: Any, metadata: dict[str, Any]) -> None:
    """Compile an edge program and write it to `path`, with `metadata` in it.

    Raises:
        SpecdecError: ExecuTorch refuses the program.
    """
    from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.program import EdgeProgramManager

    manager = EdgeProgramManager(
        {"forward": program},
        constant_methods={METHOD: json.dumps(metadata, separators=(",", ":"))},
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    # Inputs get no memory of their own: the pool is handed in, and read and written where it lies.
    compiled = manager.to_executorch(
        ExecutorchBackendConfig(
            extract_delegate_segments=True, memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False)
        )
    )
    outputs = compiled.exported_program().graph_module.graph.output_node().args[0]
    if len(outputs) != 1 or not isinstance(outputs[0].meta["val"], Tensor):
        raise SpecdecError(
            f"the compiled program has {len(outputs)} outputs, not 1",
            where=str(path),
            fix="the installed executorch is not the one this kit was made with",
        )
    with path.open("wb") as file:
        compiled.write_to_file(file)
