"""Prompts whose greedy answers the notebooks show or count.

Float32 sums depend on the processor, so two machines may disagree where the two best logits nearly tie. Every prompt here
has a gap of at least `MIN_GAP` between the two best logits at each of its first `tokens` greedy tokens
(tests/teaching/test_prompt_gaps.py computes them anew), so stored outputs come out the same elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

MIN_GAP = 0.01


class TeachingPrompt(NamedTuple):
    """A user's message and how many tokens of its greedy answer are safe to show."""

    text: str
    tokens: int


PROMPTS: dict[str, TeachingPrompt] = {
    "capital": TeachingPrompt("What is the capital of France?", 8),
    "pump": TeachingPrompt("Explain in simple words how a bicycle pump works.", 64),
    "fox": TeachingPrompt("Copy this sentence three times: The quick brown fox jumps over the lazy dog.", 10),
    "function": TeachingPrompt("Write a Python function that adds two numbers.", 48),
    "numbers": TeachingPrompt("Write the numbers from 1 to 30, separated by commas.", 48),
    "ice": TeachingPrompt("Why does ice float on water?", 40),
}
