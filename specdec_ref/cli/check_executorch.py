"""The work of `specdec check executorch`: loads what the artefact names as its source, and prints a table."""

from __future__ import annotations

from pathlib import Path

import torch

from specdec_ref.errors import SpecdecError
from specdec_ref.export.executorch import check
from specdec_ref.export.executorch.native import Pte
from specdec_ref.export.source import load_source
from specdec_ref.prompts import load_prompts


def run(path: Path, *, full: bool, threads: int) -> None:
    """Print what differs.

    Raises:
        SpecdecError: the artefact is not within the bounds, or cannot be run.
    """
    torch.set_num_threads(1)  # torch's threads and ExecuTorch's would wait for each other
    with Pte(path, context=8) as pte:
        meta = pte.metadata
    loaded, tokenizer = load_source(meta["source"])
    text = "\n".join(prompt.turns[0] for prompt in load_prompts())
    length = min(300 if full else 24, meta["context"] // 2)
    report = check.check(path, loaded, tokenizer, tokenizer.encode(text)[:length], full=full, threads=threads)
    print(
        f"{meta['name']}, {meta['precision']} (head {meta['head_precision']}, embedding "
        f"{meta['embedding_precision']}), executorch {meta['executorch_version']}"
    )
    print(
        f"{meta['delegate_calls']} partitions, {meta['delegated_share']:.1%} of the linear multiply-adds in "
        f"{meta['backend']}; other kernels: {meta['kernel_calls']}"
    )
    print(f"weights as exported from {meta['source']}: {'yes' if report.same_weights else 'NO'}")
    print(f"{'pass':18} {'T':>3} {'largest':>10} {'relative':>10} {'tokens differ':>14}")
    shown = [c for c in report.comparisons if not c.what.startswith("step")]
    steps = [c for c in report.comparisons if c.what.startswith("step")]
    if steps:
        worst = max(steps, key=lambda c: c.largest)
        shown.append(
            check.Comparison(
                f"{len(steps)} steps",
                1,
                worst.largest,
                max(c.relative for c in steps),
                sum(c.differs for c in steps),
                sum(c.flips for c in steps),
            )
        )
    for c in shown:
        print(f"{c.what:18} {c.tokens:3} {c.largest:10.2e} {c.relative:10.2e} {c.differs:14}")
    print(
        f"keys and values of the first {check.FIRST_LAYERS} layers differ by {report.cache_difference:.1e} at most"
    )
    if not check.is_float(meta):
        print(
            f"noise of {check.NOISE:g} on its embeddings moves the reference by {report.sensitivity:.1e}; "
            f"the bound on `relative` is {report.bound:.1e}"
        )
    if not report.passed:
        raise SpecdecError("the artefact does not do what the reference does", where=str(path))
    print("identical within the bounds: yes")
