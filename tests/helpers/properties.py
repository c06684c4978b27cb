"""Hypothesis settings: the same examples on every run, no time limits (the machine is shared), no files left behind."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int) -> settings:
    """A decorator that tries `count` examples, always the same ones."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
