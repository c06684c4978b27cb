"""The checks of notebooks 02 and 03: they pass every right answer and refuse each planted wrong one, saying why."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch

from specdec_ref.acceptance import accept_or_resample, greedy_verifier
from specdec_ref.drafters.base import Request
from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.sampling import Sampling, distribution, draw
from specdec_ref.teaching import checks_02, checks_03, exercise, strip, textbook_loop, toy
from specdec_ref.teaching.exercise import ExerciseError
from specdec_ref.trace import Round
from tests.helpers.planted_judges import JUDGES, residual_is_p, residual_never_falls_back

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def refused(test, attempt, words: str) -> None:
    with pytest.raises(ExerciseError) as caught:
        exercise.check("an exercise", attempt, test)
    assert words in str(caught.value)


# --- 02, exercise 1: greedy acceptance --------------------------------------------------------------------------------


def test_greedy_right_answers_pass(capsys):
    def by_the_reference(drafted, best):
        from specdec_ref.acceptance import Draft

        logits = torch.eye(11)[best]
        verdict = greedy_verifier(logits, Draft(drafted), Sampling(), Uniforms(0), round_index=0, emitted=0)
        return [verdict.accepted, verdict.next]

    exercise.check("x", by_the_reference, checks_02.test_judge_greedy)
    assert capsys.readouterr().out == "All tests in `test_judge_greedy` passed!\n"


def counts_all_matches(drafted, best):
    n = sum(a == b for a, b in zip(drafted, best, strict=False))
    return n, best[n]


def forgets_the_bonus(drafted, best):
    n, token = checks_02.judge_greedy(drafted, best)
    return n, None if n == len(drafted) else token


def always_takes_the_last_row(drafted, best):
    return checks_02.judge_greedy(drafted, best)[0], best[-1]


@pytest.mark.parametrize(
    "wrong, words",
    [
        (counts_all_matches, "(0, 3)"),
        (forgets_the_bonus, "bonus"),
        (always_takes_the_last_row, "correction"),
        (lambda drafted, best: None, "expected (2, 5)"),
    ],
)
def test_greedy_wrong_answers_are_refused(wrong, words):
    refused(checks_02.test_judge_greedy, wrong, words)


# --- 02, exercise 2: rollback -----------------------------------------------------------------------------------------


def test_rollback_reference_passes():
    assert not checks_02.rollback_problems(checks_02.rollback_lengths)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda text, drafted, accepted: (text + accepted, text + accepted),  # the draft's missing entry (F9)
        lambda text, drafted, accepted: (
            text + accepted + 1,
            text + accepted,
        ),  # counts the correction as held
        lambda text, drafted, accepted: (text, text),  # drops what was accepted
        lambda text, drafted, accepted: (text + accepted, text + accepted - 1),  # always drops one
    ],
)
def test_rollback_wrong_answers_are_refused(wrong):
    refused(checks_02.test_rollback_lengths, wrong, "its last token was never fed")


# --- 02, exercise 3: the textbook loop --------------------------------------------------------------------------------


def loop_with(fault: str = ""):
    """The mended loop with one fault put back."""

    def decode(target, drafter, prompt, *, k, max_new_tokens, sampling, seed=0):
        text, uniforms, rounds = list(prompt), Uniforms(seed), 0
        end = len(prompt) + max_new_tokens
        drafter.begin(text)
        target.reset()
        if fault != "resend":
            target.prefill(text[:-1])
        while len(text) < end:
            room = end - len(text)
            wanted = k if fault == "budget" else min(k, max(1, room) if fault == "bonus" else room - 1)
            draft, _ = drafter.propose(Request(text, wanted, sampling, uniforms, rounds))
            if fault == "resend":
                target.reset()
                rows = target.forward(text + draft.tokens)[len(text) - 1 :]
            else:
                rows = target.forward([text[-1], *draft.tokens])
            for slot, token in enumerate(draft.tokens):
                p, q = distribution(rows[slot], sampling), draft.q_row(slot, target.vocab_size)
                u, v = (uniforms(rounds, slot, use) for use in (Purpose.ACCEPT, Purpose.TARGET))
                accepted, token = accept_or_resample(p, q, token, u, v)
                if fault == "argmax" and not accepted:
                    token = int(p.argmax())
                if fault == "residual" and not accepted:
                    token = draw(p, v)
                text.append(token)
                if not accepted:
                    break
            else:
                if fault != "bonus":
                    p = distribution(rows[len(draft.tokens)], sampling)
                    text.append(draw(p, uniforms(rounds, len(draft.tokens), Purpose.TARGET)))
            if fault not in ("resend", "text"):
                target.truncate(min(target.length, len(text) - 1))
            rounds += 1
        return text[len(prompt) :]

    return decode


def test_the_textbook_loop_has_all_four_faults_and_the_mended_none():
    assert list(textbook_loop.loop_faults(textbook_loop.textbook_loop)) == list(textbook_loop.FAULTS)
    assert not textbook_loop.loop_faults(textbook_loop.mended_loop)
    assert not textbook_loop.loop_faults(loop_with())


@pytest.mark.parametrize("fault", [*textbook_loop.FAULTS, "text"])
def test_each_fault_alone_is_named(fault):
    assert list(textbook_loop.loop_faults(loop_with(fault))) == [fault]


def test_a_wrong_residual_is_found_too():
    assert list(textbook_loop.loop_faults(loop_with("residual"))) == ["argmax"]


def test_an_endless_or_failing_loop_is_reported_and_the_other_faults_are_still_judged():
    def endless(target, drafter, prompt, **options):
        while True:
            target.forward([prompt[0]])

    assert "does every round add a token?" in textbook_loop.loop_faults(endless)["bonus"]

    def failing(target, drafter, prompt, *, max_new_tokens, **options):
        if max_new_tokens == 24:
            raise KeyError("oops")
        return textbook_loop.mended_loop(target, drafter, prompt, max_new_tokens=max_new_tokens, **options)

    assert list(textbook_loop.loop_faults(failing)) == ["resend"]


def test_the_report_lists_what_is_left():
    refused(checks_02.test_loop, loop_with("argmax"), textbook_loop.FAULTS["argmax"])


@pytest.mark.parametrize(
    "answer, words",
    [
        ({"A", "C", "E"}, "1 of the four is missing"),
        ({"A", "B", "C", "E", "F"}, "B is no fault"),
        ({"D"}, "another text"),
        ({"Z"}, "no such remark"),
    ],
)
def test_wrong_remarks_are_refused(answer, words):
    refused(checks_02.test_remarks, answer, words)
    exercise.check("x", ["f", "e", "c", "a"], checks_02.test_remarks)


# --- 03, exercise 1: accept or resample -------------------------------------------------------------------------------


def test_accept_reference_passes():
    assert not checks_03.accept_problems(accept_or_resample)


@pytest.mark.parametrize("name", JUDGES)
def test_planted_judges_are_refused(name):
    assert checks_03.accept_problems(JUDGES[name])


@pytest.mark.parametrize(
    "wrong, words",
    [
        (residual_is_p, "only what acceptance left out"),
        (residual_never_falls_back, "p must stand in"),
        (JUDGES["correction_reuses_u_accept"], "never depends on u_resample"),
        (JUDGES["ratio_the_wrong_way_round"], "p/q = 0.25"),
        (lambda p, q, token, u, v: True, "got True"),
    ],
)
def test_accept_says_what_is_wrong(wrong, words):
    refused(checks_03.test_accept, wrong, words)


# --- 03, exercises 2 and 3 --------------------------------------------------------------------------------------------


def test_rate_and_top_p_references_pass():
    assert not checks_03.rate_problems(checks_03.acceptance_rate)
    assert not checks_03.rate_problems(lambda p, q: 1 - (p - q).abs().sum() / 2)
    assert not checks_03.top_p_problems(checks_03.keep_top_p)
    assert not checks_03.top_p_problems(lambda p, top_p: distribution(p.log(), Sampling(1.0, top_p=top_p)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p, q: float(p @ q),  # two independent draws agree
        lambda p, q: float((p / q.clamp(min=1e-9)).clamp(max=1).mean()),  # not weighted by q
        lambda p, q: float((p - q).abs().sum() / 2),  # the rate of rejection
        lambda p, q: 1 - float((p - q).abs().sum()),  # forgets the half
        lambda p, q: None,
    ],
)
def test_rate_wrong_answers_are_refused(wrong):
    refused(checks_03.test_rate, wrong, "expected")


def _top_p(p, top_p, keep, *, normalise=True, stable=True):
    ordered, ids = p.sort(descending=True, stable=True)
    if not stable:
        ids = p.flip(0).sort(descending=True, stable=True).indices.neg() + len(p) - 1
        ordered = p[ids]
    result = torch.zeros_like(p)
    kept = ids[keep(ordered.cumsum(0), ordered)]
    result[kept] = p[kept]
    return result / result.sum() if normalise else result


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p, t: _top_p(p, t, lambda mass, own: mass <= t),  # drops the token that crosses the line
        lambda p, t: _top_p(
            p, t, lambda mass, own: mass - own <= t
        ),  # one too many when the line is hit exactly
        lambda p, t: _top_p(p, t, lambda mass, own: mass - own < t, normalise=False),
        lambda p, t: _top_p(p, t, lambda mass, own: mass - own < t, stable=False),  # the highest id first
    ],
)
def test_top_p_wrong_answers_are_refused(wrong):
    refused(checks_03.test_top_p, wrong, "expected")


# --- What the notebooks hold ------------------------------------------------------------------------------------------


def cells(number: str, tag: str = "") -> list[str]:
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    found = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    return ["".join(c["source"]) for c in found if not tag or tag in c["metadata"].get("tags", [])]


def test_notebook_02_shows_the_textbook_loop_that_is_checked():
    (shown,) = (source for source in cells("02") if "def textbook_loop" in source)
    body = inspect.getsource(textbook_loop.textbook_loop).split('"""')[2]
    assert shown.endswith(body.rstrip())


@pytest.mark.parametrize("number, count", [("02", 4), ("03", 3)])
def test_hidden_solutions_pass_their_checks_and_are_hidden(number, count, capsys):
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if "solution" in cell["metadata"].get("tags", []):
            assert (
                "hide-cell" in cell["metadata"]["tags"]
                and cell["metadata"]["jupyter"]["source_hidden"] is True
            )
    given = {"torch": torch, "exercise": exercise, "checks_02": checks_02, "checks_03": checks_03}
    given |= {"Uniforms": Uniforms, "Purpose": Purpose, "Request": Request, "distribution": distribution}
    given |= {"accept_or_resample": accept_or_resample, "draw": draw}
    for source in cells(number, "solution"):
        exec(source, given)
    assert capsys.readouterr().out.count("passed!") == count


@pytest.mark.parametrize("number", ["02", "03"])
def test_stubs_fall_back_to_the_reference(number, capsys):
    given = {"exercise": exercise, "checks_02": checks_02, "checks_03": checks_03}
    stubs = cells(number, "exercise")
    for source in stubs:
        exec(source, given)
    assert capsys.readouterr().out.count("not attempted yet") == len(stubs) >= 3


# --- Toy models and the strip -----------------------------------------------------------------------------------------


def test_a_table_that_remembers_depends_on_every_token_held():
    model = toy.TableModel(toy.random_table(11, 0), remembers_all=True)
    model.prefill([1, 2])
    with_history = model.forward([3])
    model.reset()
    assert not torch.equal(model.forward([3]), with_history)
    model.truncate(0)
    assert torch.equal(model.forward([1, 2, 3])[-1:], with_history)
    with pytest.raises(ValueError, match="cannot roll back to 4"):
        model.truncate(4)


def test_the_strip_says_what_became_of_each_token():
    trace = [Round(2, "fixed", [0, 1], 1, 2, "correction"), Round(1, "fixed", [3], 1, 4, "bonus")]
    text = strip.rows(trace, lambda token: ["a", "b\n", " c", "d", "e"][token])
    assert text.splitlines() == [" 1  n=1/2  +a -b⏎ =·c  (correction)", " 2  n=1/1  +d =e  (bonus)"]
    ax = strip.draw(trace, str, "title")
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {
        "accepted",
        "rejected",
        "correction",
        "bonus",
    }
    import matplotlib.pyplot as plt

    plt.close(ax.figure)


# --- Stored outputs survive another processor -------------------------------------------------------------------------

COUNT = "Count from one to ten."
TRAIN = "The night train leaves Vienna at nine in the evening and stops in Salzburg shortly before midnight."
RAIN = "Write one sentence about rain."


def watched(runner, gaps):
    """The runner, noting the gap between the two best scores of each row that it returns."""

    class Watched:
        def __getattr__(self, name):
            return getattr(runner, name)

        def forward(self, tokens):
            rows = runner.forward(tokens)
            best = rows.topk(2).values
            gaps.append((best[:, 0] - best[:, 1]).tolist())
            return rows

    return Watched()


@pytest.mark.slow
def test_prompts_of_02_have_no_near_ties_in_target_or_draft():
    from specdec_ref.decoding import speculative
    from specdec_ref.drafters import ModelDrafter, PromptLookup
    from specdec_ref.teaching import models
    from specdec_ref.teaching.prompts import MIN_GAP

    pair = models.pair()
    for text, drafted, k, count in [(COUNT, True, 4, 24), ("Repeat this sentence: " + TRAIN, False, 8, 19)]:
        assert any(text.removeprefix("Repeat this sentence: ") in source for source in cells("02"))
        target_gaps, draft_gaps = [], []
        draft = ModelDrafter(watched(pair.draft, draft_gaps), pair.target.vocab_size)
        drafter = draft if drafted else PromptLookup()
        target = watched(pair.target, target_gaps)
        result = speculative(target, drafter, pair.prompt_ids(text), lookahead=k, max_new_tokens=count)
        judged = [
            gap
            for done, row in zip(result.trace, target_gaps, strict=True)
            for gap in row[: done.accepted + 1]
        ]
        assert min(judged) >= MIN_GAP
        assert min((row[-1] for row in draft_gaps), default=1.0) >= MIN_GAP


@pytest.mark.slow
def test_the_sampled_text_of_03_is_decided_by_clear_margins():
    from specdec_ref.decoding import autoregressive
    from specdec_ref.teaching import models

    pair, sampling, seed, rows = models.pair(), Sampling(0.8, top_k=20), 2, []
    shown = "\n".join(cells("03"))
    assert RAIN in shown and '"max_new_tokens": 12, "seed": 2' in shown and "Sampling(0.8, top_k=20)" in shown

    class Recorded:
        def __getattr__(self, name):
            return getattr(pair.target, name)

        def forward(self, tokens):
            rows.append(pair.target.forward(tokens))
            return rows[-1]

    text = autoregressive(
        Recorded(), pair.prompt_ids(RAIN), sampling=sampling, max_new_tokens=12, seed=seed
    ).tokens
    for place, (row, token) in enumerate(zip(rows, text, strict=True)):
        mass = distribution(row[-1], sampling).double().cumsum(0)
        u = Uniforms(seed)(place, 0, Purpose.TARGET) * float(mass[-1])
        below = float(mass[token - 1]) if token else 0.0
        cut = row[-1].topk(21).values
        assert min(u - below, float(mass[token]) - u, float(cut[19] - cut[20])) > 1e-3
