"""A benchmark run that something interrupted is repeated, and counted."""

from __future__ import annotations

from collections.abc import Callable

from specdec_ref.bench.stalls import Stalls


def runs(*paces: float) -> Callable[[], tuple[float, float]]:
    left = iter(paces)

    def run() -> tuple[float, float]:
        pace = next(left)
        return pace, pace

    return run


def test_a_stalled_run_is_repeated_and_the_faster_one_kept():
    stalls = Stalls()
    assert [stalls.steady("plain", runs(pace)) for pace in (1.0, 1.5, 0.9)] == [1.0, 1.5, 0.9]
    assert stalls.steady("plain", runs(8.0, 1.1)) == 1.1
    assert stalls.repeated == 1


def test_a_method_that_is_slow_every_time_is_reported_as_slow():
    stalls = Stalls()
    stalls.steady("plain", runs(1.0))
    assert stalls.steady("plain", runs(8.0, 9.0)) == 8.0
    assert stalls.repeated == 1


def test_nothing_is_repeated_after_the_deadline():
    stalls = Stalls(deadline=0.0)
    stalls.steady("plain", runs(1.0))
    assert stalls.steady("plain", runs(8.0, 1.0)) == 8.0
    assert stalls.repeated == 0


def test_methods_are_judged_by_their_own_pace():
    stalls = Stalls()
    stalls.steady("plain", runs(1.0))
    assert stalls.steady("assisted", runs(9.0)) == 9.0
    assert stalls.repeated == 0
