"""The processors and the law of a generation, written for clarity in numpy float64: full stable sorts, no shortcuts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from specdec_ref.sampling import Sampling


def slow_distribution(logits: Sequence[float] | np.ndarray, sampling: Sampling) -> np.ndarray:
    """float64 probabilities: temperature, top-k, top-p, min-p, each by sorting all tokens; ties go to the lowest id."""
    scaled = np.asarray(logits, dtype=np.float64)
    if sampling.temperature == 0:
        return np.eye(len(scaled))[int(np.argmax(scaled))]
    scaled = (scaled - scaled.max()) / sampling.temperature
    best_first = np.argsort(-scaled, kind="stable")
    if sampling.top_k:
        scaled[best_first[sampling.top_k :]] = -np.inf
    probabilities = np.exp(scaled) / np.exp(scaled).sum()
    if sampling.top_p < 1:
        mass = 0.0
        for token in best_first:
            if mass >= sampling.top_p:
                probabilities[token] = 0
            mass += probabilities[token]
    probabilities[probabilities < sampling.min_p * probabilities.max()] = 0
    return probabilities / probabilities.sum()


def nearest_cut(logits: Sequence[float] | np.ndarray, sampling: Sampling) -> float:
    """How close top-p or min-p comes to deciding otherwise: where float32 and float64 may honestly differ."""
    before_top_p = slow_distribution(logits, Sampling(sampling.temperature, sampling.top_k))
    mass = np.cumsum(np.sort(before_top_p)[::-1])
    gaps = [1.0]
    if sampling.top_p < 1:
        gaps += list(abs(mass - sampling.top_p))
    if sampling.min_p > 0:
        gaps += [abs(x - sampling.min_p * before_top_p.max()) for x in before_top_p if x > 0]
    return float(min(gaps))


def slow_draw(weights: np.ndarray, uniform: float) -> int:
    """The first token, by ascending id, at which the running sum exceeds uniform x total."""
    total = float(np.sum(weights, dtype=np.float64))
    running = 0.0
    last = -1
    for token, weight in enumerate(weights):
        running += float(weight)
        if weight > 0:
            last = token
            if running > uniform * total:
                return token
    return last


def chain_law(table: np.ndarray, first: int, length: int, sampling: Sampling) -> np.ndarray:
    """The exact probability of every text of `length` tokens after `first`, for a model that is a table: [V] * length."""
    rows = np.stack([slow_distribution(row, sampling) for row in table])
    law = np.zeros((table.shape[1],) * length)
    for text in itertools.product(range(table.shape[1]), repeat=length):
        law[text] = np.prod([rows[a][b] for a, b in itertools.pairwise((first, *text))])
    return law
