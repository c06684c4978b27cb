"""The loop as textbooks print it, the same mended, and probes that tell from outside which faults a loop has.

A loop is judged by what it does to a model that counts calls and tokens, so any correct way of writing it passes.
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
from specdec_ref.teaching.toy import TableModel, random_table

Decode = Callable[..., Sequence[int]]


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
            seen[name] = f"the loop raised {type(error).__name__}: {error}"
    return {name: evidence for name, evidence in seen.items() if evidence}


def _models(*, same: bool = False) -> tuple[TableModel, ModelDrafter]:
    table = random_table(_VOCAB, 1)
    noise = 0.0 if same else 1.0
    small = table + noise * random_table(_VOCAB, 2, spread=0.8)
    return TableModel(table, remembers_all=True, most_passes=200), ModelDrafter(
        TableModel(small, remembers_all=True),
        _VOCAB,
    )


def _argmax(decode: Decode) -> str:
    """First tokens of many short texts against the law they should have."""
    p = torch.tensor([0.4, 0.3, 0.2, 0.1])
    q = torch.tensor([0.1, 0.2, 0.3, 0.4])
    drafter = ModelDrafter(TableModel(q.log().repeat(4, 1)), 4)
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
