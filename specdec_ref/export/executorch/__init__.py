"""Exporting to ExecuTorch: one program that is fast at T = 1 and at T = K + 1, on a KV cache that is not its own."""

from specdec_ref.export.executorch.export import Options, build_graph, write_executorch

__all__ = ["Options", "build_graph", "write_executorch"]
