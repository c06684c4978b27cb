"""Checks of the exercises in notebook 04: tokens per pass by formula, and the lookahead that pays best."""

from __future__ import annotations

from collections.abc import Callable

from specdec_ref import speedup
from specdec_ref.lookahead import Costs
from specdec_ref.teaching.exercise import exercise_test, expect

ExpectedTokens = Callable[[float, int], float]
BestLookahead = Callable[[float, float, dict[int, float]], int]


# --- Exercise 1: expected tokens --------------------------------------------------------------------------------------


def expected_tokens(alpha: float, k: int) -> float:
    """1 + alpha + alpha^2 + … + alpha^K: the target's own token, and each slot if all before it were accepted."""
    return sum(alpha**slot for slot in range(k + 1))


@exercise_test(expected_tokens)
def test_expected_tokens(attempt: ExpectedTokens) -> None:
    for alpha, k, why in [
        (0.5, 0, "Nothing is drafted: the pass still brings the target's own token."),
        (0.5, 1, "The target's own token, and the drafted one half of the time."),
        (0.5, 2, "The second slot counts only if the first was accepted: 1 + 0.5 + 0.25."),
        (
            1.0,
            4,
            "A perfect draft brings all four tokens and the bonus token (mind a division by 1 - alpha).",
        ),
        (0.0, 4, "A useless draft still leaves the target's own token."),
    ]:
        right = speedup.expected_tokens(alpha, k)
        expect(f"expected_tokens(alpha={alpha}, k={k})", attempt(alpha, k), right, why, tolerance=1e-9)


# --- Exercise 2: best lookahead ---------------------------------------------------------------------------------------


def best_lookahead(alpha: float, c: float, v: dict[int, float]) -> int:
    """The K with the largest tau / (K c + v(K)); 0 where no K beats plain decoding."""
    speed = {k: expected_tokens(alpha, k) / (k * c + v[k]) for k in v}
    return max(speed, key=lambda k: (speed[k], -k))


_FLAT = {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
_STEEP = {0: 1.0, 1: 1.6, 2: 1.9, 3: 2.1, 4: 2.3}


@exercise_test(best_lookahead)
def test_best_lookahead(attempt: BestLookahead) -> None:
    for alpha, c, v, why in [
        (0.9, 0.05, _FLAT, "Cheap draft, free verification, good guesses: look as far as was measured."),
        (0.5, 0.30, _FLAT, "A draft step costs 0.3 target steps here, so long drafts eat what they win."),
        (
            0.5,
            0.05,
            _STEEP,
            "On this machine verification costs more than the accepted tokens bring: 0 is an answer too.",
        ),
        (0.9, 0.05, _STEEP, "With good guesses the same machine pays again, from v(K) as given, not v = 1."),
    ]:
        right, _ = speedup.best_lookahead(alpha, Costs(c, v))
        expect(f"best_lookahead(alpha={alpha}, c={c}, v={v})", attempt(alpha, c, v), right, why)
