"""`specdec check executorch`: the artefact, run natively, against the reference that it was made from.

In float32 the reference is `Decoder`, which shares nothing with the export but the weights. A quantised artefact is held to
the graph it was exported from, run in PyTorch: the same codes and scales (their fingerprint is in the file), activations
rounded by the same rule, in float arithmetic. Kernels sum in another order, so now and then an activation falls on the other
side of a rounding step, and deep models with large activations amplify that: one part in a million of noise on the
embeddings moves the logits of SmolLM2-135M at 4 bit by a fifth of their spread, in the reference itself. So a quantised
artefact is held to two things: the keys and values of its first layers, before anything is amplified, agree to 1e-3; and its
logits differ from the reference's by no more than twice what such noise does to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_ref.checkpoints import LoadedModel
from specdec_ref.errors import CheckpointError
from specdec_ref.export.executorch.export import Options, build_graph
from specdec_ref.export.executorch.graph import Graph
from specdec_ref.export.executorch.metadata import fingerprint
from specdec_ref.export.executorch.native import Pte
from specdec_ref.runner import Runner
from specdec_ref.tokenizer import Tokenizer

LOOKAHEAD = 4

FLOAT_BOUND = 1e-3
"""Largest difference of any logit in float32."""

QUANTISED_FLOOR, QUANTISED_CEILING = 0.05, 0.7
"""The bound on `Comparison.relative` of quantised artefacts, twice `Report.sensitivity`, is never below or above these: one
activation rounded the other way moved the logits of three-layer models by up to 0.02, and other weights give about 1.4."""

FLOAT_TIE = 2.5e-4
"""Two best tokens whose logits are closer than this may change places: twice what batch shapes alone do to a logit."""

NOISE = 1e-6
"""Relative noise on the embeddings that `Report.sensitivity` is the answer to: a few units in the last place of float32."""

FIRST_LAYERS = 2
"""Layer 1's keys come out of all that layer 0 does."""

Reference = Callable[[Sequence[int], int], Tensor]
"""Tokens that follow the first `start` ones -> their logits [T, rows]."""


@dataclass
class Comparison:
    """One pass of the artefact beside the reference's.

    Attributes:
        what: which pass.
        tokens: T.
        largest: difference of a logit.
        relative: root mean square difference of a position's logits over their standard deviation; the worst position's.
        differs: positions whose best token differs.
        flips: those of them where the reference's two best tokens are no tie in float32.
    """

    what: str
    tokens: int
    largest: float
    relative: float
    differs: int
    flips: int


@dataclass
class Report:
    """What the check found; `passed` says whether it is within the bounds.

    Attributes:
        metadata: what the file says about itself.
        same_weights: whether the model at hand gives the weights, codes and scales in the file.
        cache_difference: largest difference of a key or value of the first layers.
        sensitivity: `relative` of the reference to itself with noise on its embeddings; 0 in float32, where it is not used.
        comparisons: the passes.
    """

    metadata: dict[str, Any]
    same_weights: bool
    cache_difference: float = 0.0
    sensitivity: float = 0.0
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        if not self.same_weights or self.metadata["delegated_share"] < 0.95:
            return False
        if self.cache_difference > FLOAT_BOUND:
            return False
        if is_float(self.metadata):
            return all(c.largest < FLOAT_BOUND and not c.flips for c in self.comparisons)
        return all(c.relative < self.bound for c in self.comparisons)

    @property
    def bound(self) -> float:
        """Largest `relative` that a quantised artefact may have."""
        return min(max(QUANTISED_FLOOR, 2 * self.sensitivity), QUANTISED_CEILING)


def is_float(metadata: dict[str, Any]) -> bool:
    """Whether nothing is quantised."""
    return bool(metadata["precision"] == metadata["head_precision"] == "fp32")


def check(
    path: Path,
    loaded: LoadedModel,
    tokenizer: Tokenizer | None,
    prompt: Sequence[int],
    *,
    full: bool = False,
    threads: int = 1,
) -> Report:
    """Run an artefact at every width that decoding uses, roll it back, and compare each pass.

    Args:
        path: the .pte.
        loaded: the model that it was made from.
        tokenizer: that was exported with it.
        prompt: token ids, at least 8 and 20 fewer than the context.
        full: every width from 1 to 17, and 300 steps in a row.
        threads: that ExecuTorch computes with.

    Raises:
        NativeError: the artefact does not load, or a pass fails.
        CheckpointError: it was made from another model.
    """
    with Pte(path, threads=threads) as pte:
        meta = pte.metadata
        context = min(meta["context"], 2048)
        if meta["name"] != loaded.name or meta["vocab_size"] != loaded.model.config.vocab_size:
            raise CheckpointError(f"made from {meta['name']}, not {loaded.name}", where=str(path))
        options = Options(meta["precision"], meta["head_precision"], meta["context"])
        graph = build_graph(loaded, tokenizer, options)
        exact = is_float(meta)
        reference = _decoder(loaded, context, meta["head_rows"]) if exact else _graph(graph, context)
        report = Report(meta, same_weights=fingerprint(graph) == meta["weights_sha256"])
        for what, start, tokens, prefill in _plan(prompt, full, context):
            pte.truncate(start)
            if prefill:
                pte.prefill(tokens[:-1])
                ours, theirs = reference(tokens, start)[-1:], pte.forward(tokens[-1:])
            else:
                ours, theirs = reference(tokens, start), pte.forward(tokens)
            report.comparisons.append(_compare(what, ours, theirs))
        pte.reset()
        few = [*prompt[:16]]
        pte.forward(few)
        expected, keys, values = _few(graph, few)
        report.cache_difference = max(
            float((ours - theirs[:, :, : len(few)])[:FIRST_LAYERS].abs().max())
            for ours, theirs in zip((keys, values), pte.cache(), strict=True)
        )
        if not exact:
            noisy = [_few(graph, few, noise=seed)[0] for seed in (1, 2)]
            report.sensitivity = max(_compare("noise", expected, other).relative for other in noisy)
    return report


@torch.inference_mode()
def _few(graph: Graph, tokens: Sequence[int], noise: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, keys and values [layers, G, T, E] of the graph over a few tokens; `noise` seeds some on the embeddings."""
    c = graph.config
    keys = torch.zeros(c.num_hidden_layers, c.num_key_value_heads, len(tokens), c.head_dim)
    values = torch.zeros_like(keys)
    generator = torch.Generator().manual_seed(noise or 0)

    def disturb(_module: Any, _inputs: Any, x: Tensor) -> Tensor:
        return x * (1 + NOISE * torch.randn(x.shape, generator=generator))

    hook = None if noise is None else graph.embed.register_forward_hook(disturb)
    rows = torch.arange(len(tokens))
    logits = graph(torch.tensor([*tokens]), torch.tensor([0]), rows, keys, values)
    if hook is not None:
        hook.remove()
    return logits, keys, values


def _plan(prompt: Sequence[int], full: bool, context: int) -> list[tuple[str, int, list[int], bool]]:
    """Passes as (what, start, tokens, whether all but the last are a prefill)."""
    n = len(prompt)
    widths = range(1, 18) if full else (1, 2, LOOKAHEAD + 1)
    ids = [*prompt, *prompt[: max(0, 18 - n)]]
    plan = [("prompt", 0, [*prompt], True)]
    plan += [(f"T = {width}", n, ids[:width], False) for width in widths]
    # Rolled back into the prompt, other tokens: what was there must leave no trace.
    plan += [("after a rollback", n // 2, ids[1 : LOOKAHEAD + 2], False), ("from empty", 0, ids[:3], False)]
    if full:
        plan += [(f"step {i}", 3 + i, [ids[i % n]], False) for i in range(min(300, context - 3))]
    return plan


def _decoder(loaded: LoadedModel, context: int, rows: int) -> Reference:
    runner = Runner(loaded.model, context=context)

    def run(tokens: Sequence[int], start: int) -> Tensor:
        runner.truncate(start)
        return runner.forward(tokens)[:, :rows]

    return run


def _graph(graph: Graph, context: int) -> Reference:
    c = graph.config
    capacity = min(context, graph.cos.shape[0])
    keys = torch.zeros(c.num_hidden_layers, c.num_key_value_heads, capacity, c.head_dim)
    values = torch.zeros_like(keys)

    @torch.inference_mode()
    def run(tokens: Sequence[int], start: int) -> Tensor:
        ids = torch.tensor([*tokens])
        return graph(ids, torch.tensor([start]), torch.arange(len(ids)), keys, values)

    return run


def _compare(what: str, ours: Tensor, theirs: Tensor) -> Comparison:
    spread = ours.std(-1)
    relative = float(((ours - theirs).pow(2).mean(-1).sqrt() / spread).max())
    best = ours.topk(2, dim=-1).values
    gap = best[:, 0] - best[:, 1]
    differs = ours.argmax(-1) != theirs.argmax(-1)
    flips = differs & (gap > FLOAT_TIE)
    return Comparison(
        what, len(ours), float((ours - theirs).abs().max()), relative, int(differs.sum()), int(flips.sum())
    )
