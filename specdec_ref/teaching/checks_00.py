"""Checks of the exercises in notebook 00: tokens per pass of a trace, and text from tokens that end inside characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specdec_ref.teaching.exercise import exercise_test, expect
from specdec_ref.trace import Round

TokensPerPass = Callable[[Sequence[Round]], float]
Stream = Callable[[Sequence[bytes]], list[str]]


# --- Exercise 1: tokens per pass --------------------------------------------------------------------------------------


def tokens_per_pass(trace: Sequence[Round]) -> float:
    """Emitted tokens over target passes."""
    return sum(len(done.emitted) for done in trace) / len(trace)


_TRACES = [
    (
        [Round(2, "fixed", [5, 6], 1, 9, "correction"), Round(2, "fixed", [7, 8], 2, 4, "bonus")],
        2.5,
        "Each round emits its accepted tokens and one more of the target's own: (1 + 1) and (2 + 1) in two passes.",
    ),
    (
        [Round(2, "fixed", [5, 6], 2, 9, "bonus"), Round(2, "fixed", [7], 1, None, "stop")],
        2.0,
        "The last round ended inside its drafted tokens: `next` is None, so nothing of the target's own was added.",
    ),
    (
        [Round(0, "plain", [], 0, 3, "plain"), Round(0, "plain", [], 0, 1, "plain")],
        1.0,
        "Plain decoding emits one token per pass.",
    ),
]


@exercise_test(tokens_per_pass)
def test_tokens_per_pass(attempt: TokensPerPass) -> None:
    for trace, expected, why in _TRACES:
        kinds = " + ".join(done.kind for done in trace)
        expect(f"tokens per pass of a trace of {kinds}", attempt(trace), expected, why, tolerance=1e-9)


# --- Exercise 2: text from bytes --------------------------------------------------------------------------------------


def stream_text(pieces: Sequence[bytes]) -> list[str]:
    """The text that becomes certain after each piece: half a character waits for its other half."""
    shown, waiting = [], b""
    for piece in pieces:
        waiting += piece
        text = waiting.decode("utf-8", errors="ignore")
        waiting = waiting[len(text.encode("utf-8")) :]
        shown.append(text)
    return shown


_PIECES = [
    ([b"Hel", b"lo"], ["Hel", "lo"], "Whole characters are shown as soon as they are there."),
    (
        [b"caf", b"\xc3", b"\xa9!"],
        ["caf", "", "é!"],
        "A piece that ends inside a character shows nothing of it yet.",
    ),
    (
        [b"ok \xf0\x9f", b"\x98", b"\x80"],
        ["ok ", "", "😀"],
        "An emoji is four bytes: what is complete is shown, and its first bytes wait for the others.",
    ),
]


@exercise_test(stream_text)
def test_stream_text(attempt: Stream) -> None:
    for pieces, expected, why in _PIECES:
        expect(f"stream_text({pieces})", attempt(pieces), expected, why)
