"""Checks of the exercises in notebook 02: greedy acceptance, rollback lengths, and the four faults of the textbook loop.

Every check names a case, what was expected and why. The loop is judged by what it does to a model that counts calls and
tokens, so any correct way of writing it passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specdec_ref.acceptance import accept_or_resample
from specdec_ref.decoding import autoregressive
from specdec_ref.drafters import Drafter, ModelDrafter
from specdec_ref.drafters.base import Request
from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.sampling import Sampling, distribution, draw
from specdec_ref.teaching.exercise import ExerciseError, exercise_test
from specdec_ref.teaching.toy import TableModel, random_table

Judge = Callable[[list[int], list[int]], tuple[int, int]]
Rollback = Callable[[int, int, int], tuple[int, int]]
Decode = Callable[..., Sequence[int]]


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


def textbook_loop(
    target: TableModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    k: int,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int = 0,
) -> list[int]:
    """The loop as it is often printed, with four faults. Notebook 02 shows the same code; a test compares the two."""
    text, uniforms, rounds = list(prompt), Uniforms(seed), 0
    drafter.begin(text)
    while len(text) < len(prompt) + max_new_tokens:
        draft, _ = drafter.propose(Request(text, k, sampling, uniforms, rounds))
        target.reset()
        rows = target.forward(text + draft.tokens)[len(text) - 1 :]
        for slot, token in enumerate(draft.tokens):
            p, q = distribution(rows[slot], sampling), draft.q_row(slot, target.vocab_size)
            if uniforms(rounds, slot, Purpose.ACCEPT) * q[token] < p[token]:
                text.append(token)
            else:
                text.append(int(p.argmax()))
                break
        rounds += 1
    return text[len(prompt) :]


def mended_loop(
    target: TableModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    k: int,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int = 0,
) -> list[int]:
    """The textbook loop without its faults."""
    text, uniforms, rounds = list(prompt), Uniforms(seed), 0
    end = len(prompt) + max_new_tokens
    drafter.begin(text)
    target.reset()
    target.prefill(text[:-1])
    while len(text) < end:
        draft, _ = drafter.propose(Request(text, min(k, end - len(text) - 1), sampling, uniforms, rounds))
        rows = distribution(target.forward([text[-1], *draft.tokens]), sampling)
        for slot, token in enumerate(draft.tokens):
            u_accept, u_resample = (uniforms(rounds, slot, use) for use in (Purpose.ACCEPT, Purpose.TARGET))
            q = draft.q_row(slot, target.vocab_size)
            accepted, token = accept_or_resample(rows[slot], q, token, u_accept, u_resample)
            text.append(token)
            if not accepted:
                break
        else:
            slot = len(draft.tokens)
            text.append(draw(rows[slot], uniforms(rounds, slot, Purpose.TARGET)))
        target.truncate(len(text) - 1)
        rounds += 1
    return text[len(prompt) :]


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

FAULTS = {
    "argmax": "argmax after a rejection, even when sampling",
    "bonus": "the bonus token is forgotten",
    "budget": "the budget is overshot",
    "resend": "the whole text is sent again every round",
}
"""The four faults, in the order they are reported."""

_GREEDY = Sampling()
_VOCAB = 11


def loop_faults(decode: Decode) -> dict[str, str]:
    """Which of the four faults a loop still has: fault -> what was seen. Sound loops give {}.

    A fifth key, "text", says that greedy text differs from plain decoding: the usual sign of a rollback gone wrong.
    """
    probes = {"argmax": _argmax, "bonus": _bonus, "budget": _budget, "resend": _resend, "text": _text}
    seen = {}
    for name, probe in probes.items():
        try:
            seen[name] = probe(decode)
        except Exception as error:  # a learner's loop may fail in any way
            if type(error).__module__ == exercise_test.__module__:
                raise  # "not attempted yet"
            seen[name] = f"the loop raised {type(error).__name__}: {error}"
    return {name: evidence for name, evidence in seen.items() if evidence}


def _models(*, same: bool = False) -> tuple[TableModel, ModelDrafter]:
    table = random_table(_VOCAB, 1)
    noise = 0.0 if same else 1.0
    small = table + noise * random_table(_VOCAB, 2, spread=0.8)
    return TableModel(table, remembers_all=True, most_passes=200), ModelDrafter(
        TableModel(small, remembers_all=True),  # type: ignore[arg-type]  # it has what a drafter asks of a runner
        _VOCAB,
    )


def _argmax(decode: Decode) -> str:
    """First tokens of many short texts against the law they should have."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    q = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drafter = ModelDrafter(TableModel(q.log().repeat(4, 1)), 4)  # type: ignore[arg-type]
    counts = [0, 0, 0, 0]
    runs = 800
    for seed in range(runs):
        target = TableModel(p.log().repeat(4, 1), most_passes=9)
        tokens = decode(target, drafter, [0], k=1, max_new_tokens=2, sampling=Sampling(1.0), seed=seed)
        counts[tokens[0]] += 1
    shares = [count / runs for count in counts]
    if sum(abs(share - wanted) for share, wanted in zip(shares, p.tolist(), strict=True)) / 2 < 0.05:
        return ""
    return f"p is {_list(p.tolist())}, but the first tokens of {runs} texts came out as {_list(shares)}"


def _bonus(decode: Decode) -> str:
    """A draft that is always right: every pass must yield K+1 tokens."""
    target, drafter = _models(same=True)
    k, wanted = 3, 40
    decode(target, drafter, [1, 2], k=k, max_new_tokens=wanted, sampling=_GREEDY)
    passes, needed = len(target.passes), wanted // (k + 1)
    if passes <= needed + 1:  # one more for those who read the prompt with `forward`
        return ""
    return (
        f"{wanted} tokens, K = {k}, a perfect draft: {needed} target passes are enough, yours made {passes}"
    )


def _budget(decode: Decode) -> str:
    for same in (True, False):
        for k, wanted in [(4, 1), (4, 3), (4, 7), (8, 5), (1, 2)]:
            target, drafter = _models(same=same)
            got = len(decode(target, drafter, [1, 2], k=k, max_new_tokens=wanted, sampling=_GREEDY))
            if got != wanted:
                return f"max_new_tokens = {wanted}, K = {k}: the text has {got} tokens"
    return ""


def _resend(decode: Decode) -> str:
    target, drafter = _models()
    prompt, k = [i % _VOCAB for i in range(60)], 4
    decode(target, drafter, prompt, k=k, max_new_tokens=24, sampling=_GREEDY)
    allowed = len(prompt) + len(target.passes) * (k + 1)
    if target.fed <= allowed:
        return ""
    return f"{len(target.passes)} passes after a prompt of {len(prompt)} need at most {allowed} tokens, yours fed {target.fed}"


def _text(decode: Decode) -> str:
    for prompt in ([1, 2], [3, 5, 8, 9]):
        target, drafter = _models()
        got = list(decode(target, drafter, prompt, k=3, max_new_tokens=20, sampling=_GREEDY))
        plain = autoregressive(target, prompt, max_new_tokens=20).tokens
        if got[:20] != plain:
            same = next((i for i, (a, b) in enumerate(zip(got, plain, strict=False)) if a != b), len(got))
            return f"greedy text leaves plain decoding at token {same}: does the target's cache hold rejected tokens?"
    return ""


def _list(values: list[float]) -> str:
    return "[" + ", ".join(f"{value:.2f}" for value in values) + "]"


def loop_problems(decode: Decode) -> list[str]:
    """`loop_faults` as sentences."""
    names: dict[str, Any] = {**FAULTS, "text": "the text is not the target's"}
    return [f"{names[fault]}: {evidence}" for fault, evidence in loop_faults(decode).items()]


@exercise_test(mended_loop)
def test_loop(attempt: Decode) -> None:
    """Exercise 3, second part."""
    problems = loop_problems(attempt)
    if problems:
        raise ExerciseError("\n  ".join(["not yet", *problems]))


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ExerciseError(problems[0])
