"""Exercises: a learner's attempt is tested, and where there is none yet the reference stands in.

    expected_tokens = check("expected tokens", attempt, test_expected_tokens)

So "run all" works in a notebook that nobody has solved, and every later cell may rely on the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class ExerciseError(AssertionError):
    """An attempt that is not right yet: one line that says what was expected, what came, and why."""

    def _render_traceback_(self) -> list[str]:
        # IPython shows this instead of a traceback: the learner needs the line, not the machinery.
        return [f"ExerciseError: {self}"]


class Check(Protocol[T]):
    """Judges an attempt by calling `expect`; `reference` is what a correct one looks like."""

    __name__: str
    reference: T

    def __call__(self, attempt: T) -> None: ...


def exercise_test(reference: T) -> Callable[[Callable[[T], None]], Check[T]]:
    """Decorate a test function with the reference solution that it stands in for.

    Args:
        reference: a function or value that passes the test.
    """

    def mark(test: Callable[[T], None]) -> Check[T]:
        test.reference = reference  # type: ignore[attr-defined]
        return test  # type: ignore[return-value]

    return mark


def expect(what: str, came: object, expected: object, why: str, *, tolerance: float = 0.0) -> None:
    """Raise `ExerciseError` unless `came` is `expected`.

    Args:
        what: the thing looked at, such as "expected_tokens(0.5, k=2)".
        came: what the attempt gave.
        expected: what is right.
        why: the reason that it is right, or a hint, as one sentence.
        tolerance: largest difference of numbers that still counts as equal.
    """
    if not _equal(came, expected, tolerance):
        raise ExerciseError(f"{what}: expected {_show(expected)}, but got {_show(came)}. {why}")


def check(name: str, attempt: Any, test: Check[T]) -> T:
    """Test an attempt and return it; return the reference where nothing was attempted yet.

    Args:
        name: the exercise, as the learner knows it.
        attempt: a value, or a function. Not attempted: `NotImplemented`, `...`, or a function that returns either.
        test: made by `exercise_test`.

    Raises:
        ExerciseError: the attempt is wrong, with one line that says how.
    """
    try:
        test(_watched(attempt))
    except _NotAttemptedError:
        print(f"{name}: not attempted yet: the reference is used below")
        return test.reference
    except ExerciseError:
        raise
    except Exception as error:
        raise ExerciseError(f"{name}: your code raised {type(error).__name__}: {error}") from error
    print(f"All tests in `{test.__name__}` passed!")
    result: T = attempt
    return result


class _NotAttemptedError(BaseException):
    """A stub was called. Not an `Exception`: a learner's own `except Exception` around the stub must not swallow it."""


def _watched(attempt: Any) -> Any:
    """The attempt itself; a function raises `_NotAttemptedError` when it returns a stub's answer."""
    if _is_unset(attempt):
        raise _NotAttemptedError
    if not callable(attempt):
        return attempt

    @functools.wraps(attempt)
    def call(*args: Any, **options: Any) -> Any:
        result = attempt(*args, **options)
        if _is_unset(result):
            raise _NotAttemptedError
        return result

    return call


def _is_unset(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_is_unset(part) for part in value)
    return value is NotImplemented or value is ...


def _equal(came: object, expected: object, tolerance: float) -> bool:
    if isinstance(expected, bool) or isinstance(came, bool):
        return came is expected
    if isinstance(expected, int | float):
        return isinstance(came, int | float) and (came == expected or abs(came - expected) <= tolerance)
    if isinstance(expected, list | tuple) and isinstance(came, list | tuple):
        return len(came) == len(expected) and all(
            _equal(a, b, tolerance) for a, b in zip(came, expected, strict=True)
        )
    try:
        return bool(came == expected)
    except (RuntimeError, TypeError, ValueError):  # tensors of several elements have no single truth
        return False


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 120 else f"{text[:117]}..."
