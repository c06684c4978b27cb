"""When does speculation pay? Three measured numbers decide: tau, c and v(K).

A round of lookahead K costs `K c + v(K)` target steps and brings `tau` tokens, so speculation runs at `tau / (K c + v(K))`
times the speed of plain decoding (Leviathan et al., 2022, theorem 3.8, with v(K) measured where the paper sets it to 1).
How fast plain decoding can be at all is given by the roofline: every step reads all weights once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from specdec_ref.errors import UsageError
from specdec_ref.lookahead import Costs
from specdec_ref.model import Stack
from specdec_ref.runner import Runner


def expected_tokens(alpha: float | Sequence[float], k: int) -> float:
    """Tokens per target pass, 1 + sum over j of alpha_1 … alpha_j, for lookahead k.

    Args:
        alpha: acceptance probability of each slot given that the ones before were accepted; a single number, or the last of
            the list, stands for all further slots.
        k: lookahead.
    """
    by_slot = [alpha] if isinstance(alpha, (int, float)) else list(alpha)
    if any(not 0 <= a <= 1 for a in by_slot):
        raise UsageError(f"acceptance probabilities must be in [0, 1], got {by_slot}")
    total, reach = 1.0, 1.0
    for slot in range(k):
        reach *= by_slot[min(slot, len(by_slot) - 1)] if by_slot else 0.0
        total += reach
    return total


def predicted_speedup(tau: float, k: int, costs: Costs) -> float:
    """Speed of speculative decoding over plain decoding, in tokens per second."""
    return tau / costs.round_cost(k)


def best_lookahead(
    alpha: float | Sequence[float], costs: Costs, longest: int | None = None
) -> tuple[int, float]:
    """The K that is fastest, and its predicted speed-up: (0, 1.0) where speculation does not pay.

    Args:
        alpha: as in `expected_tokens`.
        costs: measured costs.
        longest: largest K considered; default: the largest K that was measured.
    """
    candidates = {
        k: predicted_speedup(expected_tokens(alpha, k), k, costs)
        for k in range(1, (longest or max(costs.v)) + 1)
    }
    k = max(candidates, key=lambda k: candidates[k])
    return (k, candidates[k]) if candidates[k] > 1 else (0, 1.0)


def break_even_alpha(k: int, costs: Costs) -> float:
    """The constant acceptance probability at which lookahead k runs at exactly the plain speed; inf where none suffices."""
    if expected_tokens(1.0, k) < costs.round_cost(k):
        return float("inf")
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < costs.round_cost(k) else (low, middle)
    return high


def measure_costs(
    target: Runner, draft: Runner | None = None, *, longest: int = 8, context: int = 128, rounds: int = 16
) -> tuple[Costs, dict[str, float]]:
    """Time c and v(1 … longest) on this machine.

    Every repetition times all passes one after another, draft steps between target steps as in real decoding (a small
    model in a loop of its own would sit in a cache it has to share here); each figure is the lower quartile over
    repetitions: what other programs do to the machine only ever adds time.

    Args:
        target: the model whose plain step is the unit. It is reset.
        draft: the draft model; None (prompt lookup) gives c = 0. It is reset.
        longest: largest K.
        context: tokens held while timing.
        rounds: repetitions.

    Returns:
        the costs, and {"target_step", "draft_step"} in seconds.
    """
    for runner in (target, draft):
        if runner is not None:
            runner.reset()
            runner.prefill([1] * context)

    def timed(runner: Runner, tokens: int) -> float:
        start = time.perf_counter()
        runner.forward([1] * tokens)
        elapsed = time.perf_counter() - start
        runner.truncate(context)
        return elapsed

    passes: dict[str, tuple[Runner, int]] = {str(k): (target, k + 1) for k in range(longest + 1)}
    if draft is not None:
        passes["draft"] = (draft, 1)
    samples: dict[str, list[float]] = {name: [] for name in passes}
    for repetition in range(rounds + 1):
        for name, (runner, tokens) in passes.items():
            if runner is target and draft is not None:
                timed(draft, 1)  # what the caches look like when the target's turn comes
            elapsed = (
                timed(runner, tokens) if runner is target else sum(timed(runner, 1) for _ in range(4)) / 4
            )
            if repetition:  # the first one warms up
                samples[name].append(elapsed)
    seconds = {name: sorted(values)[len(values) // 4] for name, values in samples.items()}
    step = seconds["0"]
    costs = Costs(
        c=seconds.get("draft", 0.0) / step,
        v={k: 1.0 if k == 0 else seconds[str(k)] / step for k in range(longest + 1)},
    )
    return costs, {"target_step": step, "draft_step": seconds.get("draft", 0.0)}


def c_params(draft: Stack, target: Stack) -> float:
    """Draft over target parameters touched per token (body and head rows): the cost ratio that bandwidth alone gives."""
    d, t = draft.config, target.config
    return (d.body_parameters + d.head_parameters) / (t.body_parameters + t.head_parameters)


def bytes_per_step(runner: Runner, context: int = 0) -> int:
    """Bytes that one pass must read: body, output head, and the keys and values of `context` tokens."""
    c = runner.model.config
    weights = (c.body_parameters + c.head_parameters) * runner.model.dtype.itemsize
    return (
        weights
        + 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * context * runner.cache.keys.itemsize
    )


def read_bandwidth(megabytes: int = 512, repetitions: int = 5) -> float:
    """Measured memory read bandwidth in bytes per second, over all of torch's threads (the fastest of a few reductions)."""
    data = torch.ones(megabytes * 2**20 // 4)
    whole = data.view(torch.int64)
    reductions: list[Callable[[], object]] = [data.sum, data.max, lambda: whole.sum()]
    best = 0.0
    for reduction in reductions:
        reduction()
        for _ in range(repetitions):
            start = time.perf_counter()
            reduction()
            best = max(best, data.nbytes / (time.perf_counter() - start))
    return best


def roofline_tokens_per_s(runner: Runner, bandwidth: float, context: int = 0) -> float:
    """Plain decoding speed if reading memory at `bandwidth` bytes/s were all it did."""
    return bandwidth / bytes_per_step(runner, context)
