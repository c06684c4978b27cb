"""Exported models in the native runtime: plain, speculative and gated decoding, and what a pass costs by its width.

Everything that is compared alternates within one run, and torch keeps to one thread: its own and ExecuTorch's would wait
for each other.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from specdec_ref.errors import UsageError
from specdec_ref.export.executorch import Options, write_executorch
from specdec_ref.export.executorch.native import Decoder, Pte
from specdec_ref.export.source import load_source
from specdec_ref.prompts import Prompt
from specdec_ref.speedup import read_bandwidth
from specdec_ref.tokenizer import Tokenizer

LONGEST_K = 8
AT = 200
"""Tokens in the cache when passes are timed."""

METHODS: dict[str, dict[str, Any]] = {
    "ar": {"draft": False},
    "spec": {"draft": True},
    "gated": {"draft": True, "gate": True},
}


@dataclass(frozen=True)
class Settings:
    """What to run: see `specdec bench native --help`."""

    target: str = "target"
    draft: str = "draft"
    precisions: tuple[str, ...] = ("fp32", "int8", "int4")
    lookahead: int = 4
    threads: int = 2
    max_new_tokens: int = 128
    per_class: int | None = None
    passes: int = 30


@dataclass(frozen=True)
class Sample:
    """One generation of one method for one prompt; `result` is what `specdec_native` answered."""

    method: str
    kind: str
    result: dict[str, Any]


def run_native(prompts: list[Prompt], settings: Settings) -> dict[str, Any]:
    """Export both models at each precision, measure, and return the JSON of `specdec bench native` (without its header).

    Raises:
        UsageError: no prompts of any class, or a K out of range.
        SpecdecError: an export fails, or the runtime is not built.
    """
    if not 1 <= settings.lookahead <= LONGEST_K:
        raise UsageError(f"K of 1 to {LONGEST_K} is measured, not {settings.lookahead}")
    torch.set_num_threads(settings.threads)
    bandwidth = read_bandwidth()
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "bandwidth_gb_s": round(bandwidth / 1e9, 2),
        "threads": settings.threads,
        "k": settings.lookahead,
        "max_new_tokens": settings.max_new_tokens,
    }
    with tempfile.TemporaryDirectory(prefix="specdec-bench-") as folder:
        for precision in settings.precisions:
            report[precision] = _measure(prompts, settings, precision, Path(folder), bandwidth)
    return report


def _measure(
    prompts: list[Prompt], settings: Settings, precision: str, folder: Path, bandwidth: float
) -> dict[str, Any]:
    loaded, tokenizer = load_source(settings.target)
    target, export_s = _export(settings.target, precision, folder)
    draft, _ = _export(settings.draft, precision, folder)
    costs = _costs(target, draft, settings)
    kinds = list(dict.fromkeys(prompt.kind for prompt in prompts))
    kept = [p for kind in kinds for p in [q for q in prompts if q.kind == kind][: settings.per_class]]
    samples: list[Sample] = []
    eos = list(loaded.eos_ids)
    with Decoder(
        target, draft, lookahead=settings.lookahead, context=1024, threads=settings.threads
    ) as native:
        for prompt in tqdm(kept, desc=precision, unit="prompt", disable=None):
            ids = _ids(tokenizer, prompt)
            for method, request in METHODS.items():
                result = native.generate(ids, max_new_tokens=settings.max_new_tokens, eos_ids=eos, **request)
                samples.append(Sample(method, prompt.kind, result))
        rss = native.rss_bytes
    step_s = costs.pop("step_ms") / 1e3
    section = _summary(samples)
    return {
        **section,
        **costs,
        "step_ms": round(1e3 * step_s, 3),
        "roofline_fraction": round(costs["weight_bytes"] / bandwidth / step_s, 3),
        "rss_mb": round(rss / 1e6, 1),
        "export_s": round(export_s, 1),
        "file_mb": {
            name: round(path.stat().st_size / 1e6, 1) for name, path in (("target", target), ("draft", draft))
        },
        "classes": {kind: _summary([s for s in samples if s.kind == kind]) for kind in kinds},
    }


def _export(name: str, precision: str, folder: Path) -> tuple[Path, float]:
    began = time.perf_counter()
    loaded, tokenizer = load_source(name)
    path = folder / f"{loaded.name}-{precision}.pte"
    write_executorch(path, loaded, tokenizer, Options(precision, context=1024), source=name)
    return path, time.perf_counter() - began


def _ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    if tokenizer.has_chat_template:
        return tokenizer.chat([{"role": "user", "content": prompt.turns[0]}])
    return tokenizer.encode(prompt.turns[0])


def _costs(target: Path, draft: Path, settings: Settings) -> dict[str, Any]:
    """Milliseconds of a step, v(K) and c: medians over rounds in which every width and the draft take their turn."""
    with Pte(target, threads=settings.threads) as big, Pte(draft, threads=settings.threads) as small:
        widths = range(1, LONGEST_K + 2)
        times: dict[int, list[float]] = {width: [] for width in widths}
        steps: list[float] = []
        for round_ in range(settings.passes + 3):
            for width in widths:
                ms = big.times(width, at=AT, passes=1)
                # As in decoding, the draft's steps come between the target's passes, and each evicts the other's weights.
                step = small.times(1, at=AT, passes=1)
                if round_ >= 3:  # the first ones warm up
                    times[width] += ms
                    steps += step
        one = median(times[1])
        return {
            "step_ms": one,
            "v": {str(width - 1): round(median(times[width]) / one, 3) for width in widths if width > 1},
            "c": round(median(steps) / one, 4),
            "load_s": round(big.info["load_ms"] / 1e3, 3),
            "weight_bytes": big.metadata["weight_bytes"],
        }


def _summary(samples: list[Sample]) -> dict[str, Any]:
    def of(method: str) -> list[dict[str, Any]]:
        return [s.result for s in samples if s.method == method]

    def speed(method: str) -> float:
        # The first token comes out of the prompt's own pass in no method: every token is decoded.
        seconds = sum(r["decode_s"] for r in of(method))
        return sum(len(r["tokens"]) for r in of(method)) / seconds if seconds else 0.0

    rounds = sum(r["rounds"] for r in of("spec"))
    plain = speed("ar")
    return {
        **{method: {"tokens_per_s": round(speed(method), 2)} for method in METHODS},
        "speedup": round(speed("spec") / plain, 3) if plain else None,
        "gated_speedup": round(speed("gated") / plain, 3) if plain else None,
        "tau": round(sum(r["emitted"] for r in of("spec")) / rounds, 3) if rounds else None,
        "identical": sum(a["tokens"] == b["tokens"] for a, b in zip(of("ar"), of("spec"), strict=True)),
        "prompts": len(of("ar")),
    }


def print_report(report: dict[str, Any]) -> None:
    """Print the result as a table."""
    print(f"{report['threads']} threads, {report['bandwidth_gb_s']} GB/s, K = {report['k']}")
    print(
        "precision   step ms  roofline   plain t/s    spec t/s   gated t/s   tau     c   v(4)   load s  RSS MB"
    )
    for name in ("fp32", "int8", "int4"):
        if name in report:
            s = report[name]
            print(
                f"{name:10} {s['step_ms']:8.2f} {s['roofline_fraction']:9.0%} {s['ar']['tokens_per_s']:11.1f} "
                f"{s['spec']['tokens_per_s']:11.1f} {s['gated']['tokens_per_s']:11.1f} {s['tau']:5.2f} {s['c']:5.3f} "
                f"{s['v']['4']:6.2f} {s['load_s']:8.2f} {s['rss_mb']:7.0f}"
            )
