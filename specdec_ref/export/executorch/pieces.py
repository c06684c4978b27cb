"""The pieces of a `Graph` as XNNPACK programs.

ExecuTorch's own path retraces a program some sixty times on its way to a backend, once more per partition: minutes for 30
layers. The pieces need none of that. They hold no operator that wants decomposing, and each is one partition by design
(checked), so what is left is naming the operators as the backend does and writing them out. And since a model's layers
differ in nothing but numbers, one middle layer is traced, and the others are written with their weights put in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from specdec_ref.errors import SpecdecError

BACKEND = "XnnpackBackend"


class Template:
    """A piece's program, to be written out with its own or another piece's weights.

    Args:
        piece: a module from tensors [T, width] to one or several such tensors.
        widths: of the inputs.
        most: largest T.

    Raises:
        SpecdecError: XNNPACK does not take the piece as one program.
    """

    def __init__(self, piece: nn.Module, widths: tuple[int, ...], most: int) -> None:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge

        inputs = tuple(torch.zeros(min(most, 3), width) for width in widths)
        tokens = torch.export.Dim("T", min=1, max=most)
        dynamic = tuple({0: tokens} for _ in inputs) if most > 1 else None
        with torch.no_grad():  # otherwise torchao's own no_grad blocks become part of the program
            self._program: Any = torch.export.export(piece, inputs, dynamic_shapes=dynamic)
            shapes = _Shapes(piece(*inputs))
            self._shapes: Any = torch.export.export(shapes, inputs, dynamic_shapes=(dynamic,))
        for node in self._operators():
            if isinstance(node.target, torch._ops.OpOverload):
                node.target = aten_to_edge(node.target)
        partitions = XnnpackPartitioner().partition(self._program).partition_tags
        strangers = [node.name for node in self._operators() if "delegation_tag" not in node.meta]
        if len(partitions) != 1 or strangers:
            raise SpecdecError(
                f"XNNPACK takes it in {len(partitions)} parts and leaves out {strangers}",
                where=type(piece).__name__,
                fix="the installed executorch is not the one this kit was made with",
            )

    def lower(self, piece: nn.Module) -> Any:
        """Return `piece`, which is of this template's kind, as an `executorch.exir.LoweredBackendModule`."""
        from executorch.backends.xnnpack import xnnpack_preprocess
        from executorch.exir.lowered_backend_module import LoweredBackendModule

        for name, tensor in piece.named_buffers():
            assert self._program.state_dict[name].shape == tensor.shape
            self._program.state_dict[name] = tensor
        with mock.patch.object(xnnpack_preprocess, "XNNPACKPassManager", _NothingToDo):
            done = xnnpack_preprocess.XnnpackBackend.preprocess(self._program, [])
        return LoweredBackendModule(
            self._shapes, BACKEND, done.processed_bytes, [], named_data_store_output=done.data_store_output
        )

    def _operators(self) -> list[Any]:
        return [node for node in self._program.graph.nodes if node.op == "call_function"]


@dataclass
class _NothingToDo:
    """Takes the place of the backend's passes, which bring decomposed programs into the form that ours have already.

    tests/export/test_executorch.py compares what is written with and without them, byte for byte.
    """

    program: Any
    passes: Any = None

    def transform(self) -> Any:
        return self.program


class _Shapes(nn.Module):
    """What a caller of a lowered piece needs to know of it: how wide its outputs are."""

    def __init__(self, outputs: Tensor | tuple[Tensor, ...]) -> None:
        super().__init__()
        self.widths = [x.shape[1] for x in ((outputs,) if isinstance(outputs, Tensor) else outputs)]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(inputs[0].new_zeros(inputs[0].shape[0], width) for width in self.widths)
