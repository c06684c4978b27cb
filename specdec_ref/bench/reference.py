"""Plain against speculative decoding in PyTorch, over a prompt set, with transformers beside it.

Everything is interleaved prompt by prompt in one run, so that a change of the machine's speed hits all sides alike, and
only ratios within the run are quoted.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from tqdm import tqdm

from specdec_ref import linear
from specdec_ref.bench.peer_transformers import TransformersPeer
from specdec_ref.bench.stalls import Stalls
from specdec_ref.decoding import autoregressive, speculative
from specdec_ref.errors import UsageError
from specdec_ref.lookahead import Costs
from specdec_ref.pair import Pair, load_pair
from specdec_ref.prompts import Prompt
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from specdec_ref.speedup import (
    best_lookahead,
    expected_tokens,
    measure_costs,
    predicted_speedup,
    read_bandwidth,
    roofline_tokens_per_s,
)
from specdec_ref.trace import Generation, Telemetry

LONGEST_K = 8
SHORT_TEXT = 32
"""New tokens of the texts that transformers, bfloat16 and sampling are measured on: they would take half an hour at 128."""


@dataclass(frozen=True)
class Settings:
    """What to run: see `specdec bench reference --help`."""

    target: str = "smollm2-135m"
    draft: str = "lookup+draft"
    lookahead: int | None = None
    max_new_tokens: int = 128
    per_class: int | None = None
    minutes: float = 9.0
    seed: int = 0


@dataclass
class Side:
    """One dtype of the pair with its measured costs."""

    pair: Pair
    peer: TransformersPeer | None
    costs: Costs
    k: int
    seconds: dict[str, float]
    stalls: Stalls


@dataclass(frozen=True)
class Sample:
    """One generation of one method for one prompt."""

    method: str
    kind: str
    tokens: list[int]
    seconds: float
    telemetry: Telemetry | None = None


def run_reference(prompts: list[Prompt], settings: Settings) -> dict[str, Any]:
    """Run the benchmark and return the JSON of `specdec bench reference` (without its header).

    The first prompt of each class runs every method in both dtypes, on shorter texts where many are compared; the others
    run plain and speculative decoding in float32, until all are done or the time is over.
    """
    deadline = time.perf_counter() + settings.minutes * 60
    stalls = Stalls(deadline)
    bandwidth = read_bandwidth()
    groups: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        groups[prompt.kind].append(prompt)
    kept = [p for group in groups.values() for p in group[: settings.per_class]]
    first = [group[0] for group in groups.values()]
    rest = [p for p in prompts if p in kept and p not in first]
    sides = {dtype: _side(settings, dtype, first, stalls) for dtype in (torch.float32, torch.bfloat16)}
    samples: dict[str, list[Sample]] = {"float32": [], "bfloat16": [], "sampled": []}
    peers: list[Sample] = []
    skipped = 0
    with tqdm(total=len(first) + len(rest), unit="prompt", disable=None) as bar:
        short = replace(settings, max_new_tokens=min(SHORT_TEXT, settings.max_new_tokens))
        for prompt in first:
            peers += _run(sides[torch.float32], prompt, short, peer=True)
            samples["bfloat16"] += _run(sides[torch.bfloat16], prompt, short, peer=True)
            samples["sampled"] += _run(sides[torch.float32], prompt, short, sampling=Sampling(1.0))
            samples["float32"] += _run(sides[torch.float32], prompt, settings)
            bar.update()
        for prompt in rest:
            if time.perf_counter() > deadline:
                skipped += 1
                continue
            samples["float32"] += _run(sides[torch.float32], prompt, settings)
            bar.update()
    report = _section(samples["float32"], sides[torch.float32], bandwidth)
    _add_peer(report, _section(peers, sides[torch.float32], bandwidth))
    report["sampled"] = _section(samples["sampled"], sides[torch.float32], bandwidth)
    report["bfloat16"] = _section(samples["bfloat16"], sides[torch.bfloat16], bandwidth)
    report["better_dtype"] = _better(report)
    return {
        "pair": sides[torch.float32].pair.name,
        "bandwidth_gb_s": round(bandwidth / 1e9, 2),
        "max_new_tokens": settings.max_new_tokens,
        "max_new_tokens_peer_bfloat16_sampled": min(SHORT_TEXT, settings.max_new_tokens),
        "prompts": len(kept) - skipped,
        "prompts_skipped_by_time_limit": skipped,
        "runs_repeated_after_a_stall": stalls.repeated,
        "linear": linear.report(),
        **report,
    }


def _side(settings: Settings, dtype: torch.dtype, pilot: list[Prompt], stalls: Stalls) -> Side:
    pair = load_pair(settings.target, settings.draft, dtype=dtype, context=1024)
    if pair.draft is None and settings.draft != "lookup":
        raise UsageError(
            f"the cost of a step of {settings.draft!r} is not measured here",
            fix="name a draft model, or lookup",
        )
    costs, seconds = measure_costs(pair.target, pair.draft, longest=LONGEST_K)
    k = settings.lookahead
    if k is None:
        # A short pilot tells the acceptance, the costs tell the rest. A K of at least 1 even where plain is faster:
        # the benchmark is there to show by how much.
        counts = Telemetry()
        for prompt in pilot:
            counts += _speculate(pair, _ids(pair, prompt), 5, replace(settings, max_new_tokens=24)).telemetry
        options = {
            j: predicted_speedup(expected_tokens(counts.alpha, j), j, costs) for j in range(1, LONGEST_K + 1)
        }
        k = best_lookahead(counts.alpha, costs)[0] or max(options, key=lambda j: options[j])
    peer = None
    if pair.draft is not None:
        peer = TransformersPeer(pair.target.model, pair.draft.model, max(k, 1))
    return Side(pair, peer, costs, k, seconds, stalls)


def _ids(pair: Pair, prompt: Prompt) -> list[int]:
    return pair.prompt_ids(prompt.turns[0])


def _speculate(
    pair: Pair, ids: list[int], k: int, settings: Settings, sampling: Sampling | None = None
) -> Generation:
    if pair.drafter is None:
        raise ValueError("the benchmark needs a drafter")
    return speculative(
        pair.target,
        pair.drafter,
        ids,
        lookahead=k,
        sampling=sampling,
        max_new_tokens=settings.max_new_tokens,
        eos_ids=pair.eos_ids,
        seed=settings.seed,
    )


def _run(
    side: Side, prompt: Prompt, settings: Settings, *, peer: bool = False, sampling: Sampling | None = None
) -> list[Sample]:
    """All methods on one prompt, one after another."""
    pair, ids = side.pair, _ids(side.pair, prompt)
    suffix = f" {pair.target.model.dtype}{' sampled' if sampling else ''}"

    def loop(method: Callable[[], Generation]) -> Callable[[], tuple[Generation, float]]:
        def run() -> tuple[Generation, float]:
            result = method()
            return result, result.seconds["decode"] / max(result.telemetry.target_passes, 1)

        return run

    def peer_loop(assisted: bool) -> Callable[[], tuple[tuple[list[int], float], float]]:
        assert side.peer is not None
        generate = side.peer.generate

        def run() -> tuple[tuple[list[int], float], float]:
            tokens, seconds = generate(
                ids, assisted=assisted, max_new_tokens=settings.max_new_tokens, eos_ids=pair.eos_ids
            )
            return (tokens, seconds), seconds / max(len(tokens), 1)

        return run

    def plainly() -> Generation:
        return autoregressive(
            pair.target,
            ids,
            sampling=sampling,
            max_new_tokens=settings.max_new_tokens,
            eos_ids=pair.eos_ids,
            seed=settings.seed,
        )

    done = []
    for name, method in (
        ("autoregressive", plainly),
        ("speculative", lambda: _speculate(pair, ids, side.k, settings, sampling)),
    ):
        result = side.stalls.steady(name + suffix, loop(method))
        done.append(Sample(name, prompt.kind, result.tokens, result.seconds["decode"], result.telemetry))
    if peer and side.peer is not None:
        for name, assisted in (("peer_plain", False), ("peer_assisted", True)):
            tokens, seconds = side.stalls.steady(name + suffix, peer_loop(assisted))
            done.append(Sample(name, prompt.kind, tokens, seconds))
    return done


def _section(samples: list[Sample], side: Side, bandwidth: float) -> dict[str, Any]:
    kinds = list(dict.fromkeys(sample.kind for sample in samples))
    return {
        "overall": _summary(samples, side, bandwidth),
        "classes": {
            kind: _summary([s for s in samples if s.kind == kind], side, bandwidth) for kind in kinds
        },
    }


def _add_peer(report: dict[str, Any], short: dict[str, Any]) -> None:
    """Copy the peer's figures, which were measured beside ours on shorter texts, into the main section."""
    for mine, other in [
        (report["overall"], short["overall"]),
        *zip(report["classes"].values(), short["classes"].values(), strict=True),
    ]:
        if "peer_transformers" in other:
            mine["peer_transformers"] = other["peer_transformers"]


def _speed(samples: list[Sample]) -> float | None:
    seconds = sum(s.seconds for s in samples)
    return round(sum(len(s.tokens) for s in samples) / seconds, 3) if seconds else None


def _summary(samples: list[Sample], side: Side, bandwidth: float) -> dict[str, Any]:
    of: Callable[[str], list[Sample]] = lambda method: [s for s in samples if s.method == method]  # noqa: E731
    counts = Telemetry()
    for sample in of("speculative"):
        counts += sample.telemetry or Telemetry()
    plain, fast = _speed(of("autoregressive")) or 0.0, _speed(of("speculative")) or 0.0
    target: Runner = side.pair.target
    # What a round costs on average depends on how many tokens were really drafted (lookup is free, and may be silent).
    rounds = max(counts.rounds, 1)
    mean_drafted = counts.drafted / rounds
    cost = side.costs.round_cost(round(mean_drafted)) - side.costs.c * (
        round(mean_drafted) - counts.draft_passes / rounds
    )
    summary: dict[str, Any] = {
        "autoregressive": {
            "tokens_per_s": plain,
            "roofline_fraction": round(plain / roofline_tokens_per_s(target, bandwidth, 200), 3),
        },
        "speculative": {"tokens_per_s": fast},
        "speedup": round(fast / plain, 3) if plain else None,
        "k": side.k,
        "tau": round(counts.tau, 3),
        "alpha": [round(a, 3) for a in counts.alpha],
        "c": round(side.costs.c, 4),
        "v": {str(k): round(v, 3) for k, v in side.costs.v.items()},
        "predicted_speedup": round(counts.tau / cost, 3),
        "identical": all(
            a.tokens == b.tokens for a, b in zip(of("autoregressive"), of("speculative"), strict=True)
        ),
        "prompts": len(of("speculative")),
    }
    if of("peer_assisted"):
        theirs, base = _speed(of("peer_assisted")) or 0.0, _speed(of("peer_plain")) or 0.0
        summary["peer_transformers"] = {
            "tokens_per_s": theirs,
            "speedup": round(theirs / base, 3),
            "plain_tokens_per_s": base,
            "ours_over_peer": round(fast / theirs, 3),
            "prompts": len(of("peer_assisted")),
        }
    return summary


def _better(report: dict[str, Any]) -> dict[str, Any]:
    """Each side at its better dtype: ours is what a user gets with the break-even gate, the faster of both loops."""
    dtypes = {"float32": report["overall"], "bfloat16": report["bfloat16"]["overall"]}
    ours = {
        d: max(o["speculative"]["tokens_per_s"], o["autoregressive"]["tokens_per_s"])
        for d, o in dtypes.items()
    }
    theirs = {
        d: o["peer_transformers"]["tokens_per_s"] for d, o in dtypes.items() if "peer_transformers" in o
    }
    if not theirs:
        return {}
    mine, other = max(ours, key=lambda d: ours[d]), max(theirs, key=lambda d: theirs[d])
    loop = "speculative" if ours[mine] == dtypes[mine]["speculative"]["tokens_per_s"] else "plain"
    return {
        "ours": {"dtype": mine, "loop": loop, "tokens_per_s": ours[mine]},
        "peer": {"dtype": other, "tokens_per_s": theirs[other]},
        "ratio": round(ours[mine] / theirs[other], 3),
    }
