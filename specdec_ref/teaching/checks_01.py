"""Checks of the exercises in notebook 01: bytes of the KV cache, and the work that a cache saves."""

from __future__ import annotations

from collections.abc import Callable

from specdec_ref.model import ModelConfig
from specdec_ref.teaching.exercise import exercise_test, expect

CacheBytes = Callable[[ModelConfig, int], int]
Positions = Callable[[int, int], tuple[int, int]]


# --- Exercise 1: bytes of the cache -----------------------------------------------------------------------------------


def cache_bytes(config: ModelConfig, tokens: int) -> int:
    """Bytes of the float32 keys and values of so many tokens."""
    per_layer = config.num_key_value_heads * config.head_dim
    return 2 * config.num_hidden_layers * per_layer * tokens * 4


def _config(layers: int, heads: int, groups: int, width: int) -> ModelConfig:
    return ModelConfig(
        vocab_size=100,
        hidden_size=heads * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=width,
        intermediate_size=64,
        max_position_embeddings=512,
    )


@exercise_test(cache_bytes)
def test_cache_bytes(attempt: CacheBytes) -> None:
    small, grouped = _config(1, 1, 1, 8), _config(3, 9, 3, 64)
    expect(
        "one layer, one head of width 8, one token",
        attempt(small, 1),
        64,
        "Keys AND values are kept: 2 x 8 numbers of 4 bytes.",
    )
    expect(
        "three layers, 9 query heads that share 3 key/value heads of width 64, one token",
        attempt(grouped, 1),
        4608,
        "The cache holds the key/value heads, not the query heads, of every layer.",
    )
    expect(
        "the same for 10 tokens", attempt(grouped, 10), 46080, "Every token has keys and values of its own."
    )


# --- Exercise 2: positions processed ----------------------------------------------------------------------------------


def positions(prompt: int, new: int) -> tuple[int, int]:
    """Token positions pushed through the model to generate `new` tokens: (without a cache, with one)."""
    return sum(prompt + done for done in range(new)), prompt + new - 1


@exercise_test(positions)
def test_positions(attempt: Positions) -> None:
    for prompt, new, expected, why in [
        (10, 1, (10, 10), "The first new token needs the whole prompt either way."),
        (
            10,
            2,
            (21, 11),
            "Without a cache the second pass reads prompt and first token again: 10 + 11. With it: 10 + 1.",
        ),
        (
            10,
            5,
            (60, 14),
            "10 + 11 + 12 + 13 + 14 without; the last new token is never fed back, so 10 + 4 with.",
        ),
    ]:
        came = attempt(prompt, new)
        expect(f"positions(prompt={prompt}, new={new})", tuple(came), expected, why)
