"""Checks of the exercises in notebook 02: greedy acceptance, rollback lengths, and the four faults of the textbook loop.

Every check names a case, what was expected and why. How a loop is judged is in `textbook_loop.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from specdec_ref.teaching.exercise import ExerciseError, exercise_test
from specdec_ref.teaching.textbook_loop import Decode, loop_problems, mended_loop

Judge = Callable[[list[int], list[int]], tuple[int, int]]
Rollback = Callable[[int, int, int], tuple[int, int]]


# --- Exercise 1: greedy acceptance ------------------------------------------------------------------------------------


def judge_greedy(drafted: list[int], best: list[int]) -> tuple[int, int]:
    """How many drafted tokens stand, and the target's own token after them (K drafted, K+1 best)."""
    n = 0
    while n < len(drafted) and drafted[n] == best[n]:
        n += 1
    return n, best[n]


_GREEDY_CASES = [
    (
        [3, 1, 4],
        [3, 1, 5, 9],
        (2, 5),
        "two agree; the correction is the target's token in the slot that failed",
    ),
    ([3, 1, 4], [3, 1, 4, 9], (3, 9), "all agree; the last row gives the bonus token"),
    (
        [2, 1, 4],
        [3, 1, 4, 9],
        (0, 3),
        "the first fails, so nothing after it counts, even where it agrees again",
    ),
    (
        [3, 7, 4],
        [3, 1, 4, 9],
        (1, 1),
        "a later match after a rejection was scored on a text that is no longer the text",
    ),
    ([], [6], (0, 6), "nothing drafted: the pass is a plain step"),
]


def greedy_problems(candidate: Judge) -> list[str]:
    """What is wrong with an answer to exercise 1; empty if nothing is."""
    problems = []
    for drafted, best, wanted, why in _GREEDY_CASES:
        got = candidate(list(drafted), list(best))
        if got is None or tuple(got) != wanted:
            problems.append(f"drafted {drafted}, best {best}: expected {wanted}, got {got} ({why})")
    return problems


@exercise_test(judge_greedy)
def test_judge_greedy(attempt: Judge) -> None:
    """Exercise 1."""
    _refuse(greedy_problems(attempt))


# --- Exercise 2: rollback ---------------------------------------------------------------------------------------------


def rollback_lengths(text: int, drafted: int, accepted: int) -> tuple[int, int]:
    """Tokens that target and draft cache keep after a round that began with `text` tokens."""
    return text + accepted, min(text + accepted, text + drafted - 1)


def rollback_problems(candidate: Rollback) -> list[str]:
    """What is wrong with an answer to exercise 2: compared with caches that are replayed token by token."""
    problems = []
    for text in (1, 7, 20):
        for drafted in (1, 2, 4):
            for accepted in range(drafted + 1):
                names = [f"t{i}" for i in range(text)]
                drafts = [f"d{i}" for i in range(drafted)]
                target, draft = names + drafts, names + drafts[:-1]
                after = names + drafts[:accepted] + ["next"]
                wanted = _common(target, after), _common(draft, after)
                got = candidate(text, drafted, accepted)
                if got is None or tuple(got) != wanted:
                    problems.append(
                        f"text {text}, drafted {drafted}, accepted {accepted}: expected {wanted}, got {got} "
                        f"(the target held {len(target)} tokens, the draft {len(draft)}: its last token was never fed)"
                    )
    return problems


@exercise_test(rollback_lengths)
def test_rollback_lengths(attempt: Rollback) -> None:
    """Exercise 2."""
    _refuse(rollback_problems(attempt))


def _common(held: list[str], text: list[str]) -> int:
    count = 0
    while count < min(len(held), len(text)) and held[count] == text[count]:
        count += 1
    return count


# --- Exercise 3: the textbook loop ------------------------------------------------------------------------------------


REMARKS = {
    "A": "After a rejection it appends the target's argmax, even when sampling.",
    "B": "It compares u * q with p, where p / q is needed.",
    "C": "When all K drafted tokens stand, it adds no token of the target's own.",
    "D": "It stops at the first rejected token, though later ones may still match.",
    "E": "It may return more than max_new_tokens tokens.",
    "F": "It feeds the whole text to the target in every round.",
    "G": "It gives the drafter the same uniforms object as the acceptance test.",
    "H": "It reads the rows from len(text) - 1 on, one row too early.",
}
"""Eight remarks that a reviewer might make about the textbook loop; four are right."""

RIGHT_REMARKS = {"A", "C", "E", "F"}


@exercise_test(RIGHT_REMARKS)
def test_remarks(attempt: set[str]) -> None:
    """Exercise 3, first part."""
    named = {str(letter).upper() for letter in attempt}
    wrong, missing = sorted(named - RIGHT_REMARKS), len(RIGHT_REMARKS - named)
    _refuse([f"{letter} is no fault: {_EXCUSES.get(letter, 'there is no such remark')}" for letter in wrong])
    _refuse(
        [f"all you named are faults; {missing} of the four {'is' if missing == 1 else 'are'} missing"]
        if missing
        else []
    )


_EXCUSES = {
    "B": "u < p/q and u * q < p say the same, and the second needs no division by zero",
    "D": "what the draft proposed after a rejected token was meant for another text",
    "G": "each draw is named by its purpose, so the two never share a number",
    "H": "the row of the text's last token scores the first drafted one",
}


@exercise_test(mended_loop)
def test_loop(attempt: Decode) -> None:
    """Exercise 3, second part."""
    problems = loop_problems(attempt)
    if problems:
        raise ExerciseError("\n  ".join(["not yet", *problems]))


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ExerciseError(problems[0])
