"""The exercise machinery, and the checks of notebooks 00, 01, 04, 05 and 06: the reference passes, wrong answers do not."""

from __future__ import annotations

from typing import Any

import pytest

from specdec_ref.teaching import checks_00, checks_01, checks_04, checks_05, checks_06
from specdec_ref.teaching.exercise import ExerciseError, check, exercise_test, expect


def double(x: int) -> int:
    return 2 * x


@exercise_test(double)
def double_check(attempt: Any) -> None:
    expect("double(3)", attempt(3), 6, "Twice three.")


class TestCheck:
    def test_right_attempt_is_returned_and_says_the_one_line(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mine = lambda x: x + x  # noqa: E731
        assert check("double", mine, double_check) is mine
        assert capsys.readouterr().out == "All tests in `double_check` passed!\n"

    @pytest.mark.parametrize("stub", [NotImplemented, ..., lambda x: NotImplemented, lambda x: ..., (1, ...)])
    def test_stub_falls_back_to_the_reference(self, stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
        assert check("double", stub, double_check) is double
        assert capsys.readouterr().out == "double: not attempted yet: the reference is used below\n"

    def test_stub_inside_the_learner_s_own_try_is_still_a_stub(self) -> None:
        def swallowing(attempt: Any) -> None:
            try:
                expect("double(3)", attempt(3), 6, "Twice three.")
            except Exception as error:
                raise ExerciseError("wrong") from error

        assert check("double", lambda x: NotImplemented, exercise_test(double)(swallowing)) is double

    def test_wrong_attempt_says_expected_came_and_why_in_one_line(self) -> None:
        with pytest.raises(ExerciseError) as caught:
            check("double", lambda x: x, double_check)
        assert str(caught.value) == "double(3): expected 6, but got 3. Twice three."
        assert caught.value._render_traceback_() == [f"ExerciseError: {caught.value}"]

    def test_attempt_that_raises_is_named(self) -> None:
        with pytest.raises(ExerciseError, match="double: your code raised ZeroDivisionError"):
            check("double", lambda x: x / 0, double_check)

    @pytest.mark.parametrize(
        ("came", "right"), [(True, 1), ([1, 2], [1]), (None, 0), ("a", 1.0), (float("nan"), 1.0)]
    )
    def test_unlike_values_are_not_equal(self, came: Any, right: Any) -> None:
        with pytest.raises(ExerciseError):
            expect("x", came, right, "No.", tolerance=0.1)


def emitted_without_correction(trace: Any) -> float:
    return sum(r.accepted for r in trace) / len(trace)


def always_one_more(trace: Any) -> float:
    return sum(r.accepted + 1 for r in trace) / len(trace)


def drafted_counts(trace: Any) -> float:
    return sum(len(r.drafted) + 1 for r in trace) / len(trace)


def ignores_half_characters(pieces: Any) -> list[str]:
    return [piece.decode("utf-8", errors="ignore") for piece in pieces]


def shows_replacement(pieces: Any) -> list[str]:
    return [piece.decode("utf-8", errors="replace") for piece in pieces]


def waits_for_the_end(pieces: Any) -> list[str]:
    return [""] * (len(pieces) - 1) + [b"".join(pieces).decode()]


def keys_only(config: Any, tokens: int) -> int:
    return config.num_hidden_layers * config.num_key_value_heads * config.head_dim * tokens * 4


def all_query_heads(config: Any, tokens: int) -> int:
    return 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * tokens * 4


def one_layer(config: Any, tokens: int) -> int:
    return 2 * config.num_key_value_heads * config.head_dim * tokens * 4


def last_token_fed_back(prompt: int, new: int) -> tuple[int, int]:
    return sum(prompt + i for i in range(new)), prompt + new


def prompt_each_time(prompt: int, new: int) -> tuple[int, int]:
    return prompt * new, prompt + new - 1


def off_by_one(prompt: int, new: int) -> tuple[int, int]:
    return sum(prompt + i + 1 for i in range(new)), prompt + new - 1


def slots_independent(alpha: float, k: int) -> float:
    return 1 + k * alpha


def no_bonus(alpha: float, k: int) -> float:
    return sum(alpha**i for i in range(1, k + 1))


def closed_form(alpha: float, k: int) -> float:
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def most_tokens(alpha: float, c: float, v: dict[int, float]) -> int:
    return max(v)


def free_verification(alpha: float, c: float, v: dict[int, float]) -> int:
    return checks_04.best_lookahead(alpha, c, dict.fromkeys(v, 1.0))


def always_speculates(alpha: float, c: float, v: dict[int, float]) -> int:
    return checks_04.best_lookahead(alpha, c, {k: v[k] for k in v if k}) or 1


def reversed_kl(p: Any, q: Any) -> Any:
    return checks_05.distillation_loss(q, p)


def mean_over_tokens_too(p: Any, q: Any) -> Any:
    return (p * (p.log() - q.log())).mean()


def summed_over_rows(p: Any, q: Any) -> Any:
    return (p * (p.log() - q.log())).sum()


def hard_labels(p: Any, q: Any) -> Any:
    return -q.log().gather(-1, p.argmax(-1, keepdim=True)).mean()


def argmax_agreement(p: Any, q: Any) -> Any:
    return (p.argmax(-1) == q.argmax(-1)).double().mean()


def same_draw(p: Any, q: Any) -> Any:
    return (p * q).sum(-1).mean()


def distance_not_halved(p: Any, q: Any) -> Any:
    return 1 - (p - q).abs().sum(-1).mean()


def too_many_steps(weights: Any, bits: int) -> Any:
    low, step = weights.min(), (weights.max() - weights.min()) / 2**bits
    return low + step * ((weights - low) / step).round() if step else weights


def rounds_down(weights: Any, bits: int) -> Any:
    low, step = weights.min(), (weights.max() - weights.min()) / (2**bits - 1)
    return low + step * ((weights - low) / step).floor() if step else weights


def symmetric_grid(weights: Any, bits: int) -> Any:
    step = weights.abs().max() / (2 ** (bits - 1))
    return step * (weights / step).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def divides_by_zero(weights: Any, bits: int) -> Any:
    low, step = weights.min(), (weights.max() - weights.min()) / (2**bits - 1)
    return low + step * ((weights - low) / step).round()


def codes_only(bits: int, group: int, symmetric: bool) -> float:
    return float(bits)


def no_minimum(bits: int, group: int, symmetric: bool) -> float:
    return bits + 16 / group


def wide_scales(bits: int, group: int, symmetric: bool) -> float:
    return bits + (32 if symmetric else 64) / group


WRONG = [
    (checks_00.test_tokens_per_pass, [emitted_without_correction, always_one_more, drafted_counts]),
    (checks_00.test_stream_text, [ignores_half_characters, shows_replacement, waits_for_the_end]),
    (checks_01.test_cache_bytes, [keys_only, all_query_heads, one_layer]),
    (checks_01.test_positions, [last_token_fed_back, prompt_each_time, off_by_one]),
    (checks_04.test_expected_tokens, [slots_independent, no_bonus, closed_form]),
    (checks_04.test_best_lookahead, [most_tokens, free_verification, always_speculates]),
    (checks_05.test_distillation_loss, [reversed_kl, mean_over_tokens_too, summed_over_rows, hard_labels]),
    (checks_05.test_acceptance, [argmax_agreement, same_draw, distance_not_halved]),
    (checks_06.test_round_to_grid, [too_many_steps, rounds_down, symmetric_grid, divides_by_zero]),
    (checks_06.test_bits_per_weight, [codes_only, no_minimum, wide_scales]),
]


@pytest.mark.parametrize("test", [test for test, _ in WRONG], ids=lambda test: test.__name__)
def test_reference_passes(test: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("it", test.reference, test) is test.reference
    assert capsys.readouterr().out == f"All tests in `{test.__name__}` passed!\n"


@pytest.mark.parametrize(
    ("test", "wrong"),
    [(test, wrong) for test, all_wrong in WRONG for wrong in all_wrong],
    ids=lambda x: x.__name__,
)
def test_planted_wrong_answer_is_refused(test: Any, wrong: Any) -> None:
    with pytest.raises(ExerciseError, match=r"expected .*, but got .*|your code raised ZeroDivisionError"):
        check("it", wrong, test)
