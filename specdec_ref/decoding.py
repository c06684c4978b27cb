"""The two decoding loops, side by side: one token per target pass, and several.

Both take the same arguments and return the same record. At temperature 0 they return the same tokens; otherwise tokens of
the same distribution (Leviathan et al., 2022; Chen et al., 2023).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from specdec_ref.acceptance import Draft, Verifier, greedy_verifier, rejection_verifier
from specdec_ref.drafters.base import Drafter, Request
from specdec_ref.errors import UsageError
from specdec_ref.lookahead import FixedLookahead, LookaheadPolicy, RoundTiming
from specdec_ref.rng import Purpose, Uniforms
from specdec_ref.runner import LanguageModel
from specdec_ref.sampling import Sampling, distribution, draw
from specdec_ref.trace import FinishReason, Generation, Round, Telemetry

OnToken = Callable[[int], object]
StopWhen = Callable[[Sequence[int]], bool]


def autoregressive(
    target: LanguageModel,
    prompt: Sequence[int],
    *,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    eos_ids: Sequence[int] = (),
    stop_when: StopWhen | None = None,
    seed: int = 0,
    on_token: OnToken | None = None,
) -> Generation:
    """Plain decoding: one target pass per token.

    Args:
        target: the model; it is reset first.
        prompt: at least one token id.
        sampling: how tokens are chosen; default greedy.
        max_new_tokens: exactly so many tokens are generated unless the text ends sooner.
        eos_ids: tokens that end the text (they are part of it).
        stop_when: asked after each token with all generated ones; True ends the text.
        seed: randomness is a function of it alone.
        on_token: called with each token as it is decided; returning False cancels.

    Raises:
        UsageError: the prompt is empty, longer than the context, or holds an id outside the vocabulary.
    """
    sampling = sampling or Sampling()
    uniforms = Uniforms(seed)
    text = _Text(target, prompt, max_new_tokens, eos_ids, stop_when, on_token)
    start = time.perf_counter()
    target.reset()
    target.prefill(text.tokens[:-1])
    prefilled = time.perf_counter()
    while not text.finished:
        logits = target.forward(text.tokens[-1:])[-1]
        if sampling.greedy:
            token = int(logits.argmax())
        else:
            token = draw(distribution(logits, sampling), uniforms(len(text.trace), 0, Purpose.TARGET))
        text.add(Round(k=0, reason="plain", drafted=[], accepted=0, next=token, kind="plain"))
    return text.generation(prefilled - start, time.perf_counter() - prefilled)


def speculative(
    target: LanguageModel,
    drafter: Drafter,
    prompt: Sequence[int],
    *,
    lookahead: LookaheadPolicy | int = 4,
    verifier: Verifier = rejection_verifier,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    eos_ids: Sequence[int] = (),
    stop_when: StopWhen | None = None,
    seed: int = 0,
    on_token: OnToken | None = None,
) -> Generation:
    """Speculative decoding: draft K tokens, score them in one target pass, keep the ones the target agrees with.

    Args:
        target: as in `autoregressive`.
        drafter: proposes tokens; it is begun anew with the prompt.
        prompt: as in `autoregressive`.
        lookahead: K, or the policy that chooses it each round.
        verifier: how drafted tokens are judged when sampling; at temperature 0 comparing with the argmax is enough.
        sampling, max_new_tokens, eos_ids, stop_when, seed, on_token: as in `autoregressive`.

    Raises:
        UsageError: as in `autoregressive`.
    """
    sampling = sampling or Sampling()
    uniforms = Uniforms(seed)
    policy = FixedLookahead(lookahead) if isinstance(lookahead, int) else lookahead
    verify = greedy_verifier if sampling.greedy else verifier
    text = _Text(target, prompt, max_new_tokens, eos_ids, stop_when, on_token)
    start = time.perf_counter()
    target.reset()
    target.prefill(text.tokens[:-1])
    drafter.begin(text.tokens)
    prefilled = time.perf_counter()
    while not text.finished:
        # 1. How far to look ahead. The target adds a token of its own, so one less than what is left is enough.
        began = time.perf_counter()
        k, reason = policy.next_k()
        if k > text.room - 1:
            k, reason = text.room - 1, "budget"
        # 2. Draft.
        draft, ended_early = Draft(), None
        if k > 0:
            confident = policy.confident if policy.uses_confidence else None
            request = Request(text.tokens, k, sampling, uniforms, len(text.trace), confident)
            draft, ended_early = drafter.propose(request)
        drafted = time.perf_counter()
        # 3. One target pass over the last committed token and all drafted ones.
        logits = target.forward([text.tokens[-1], *draft.tokens])
        # 4. Accept a prefix of the draft, then one token of the target's own.
        verdict = verify(logits, draft, sampling, uniforms, round_index=len(text.trace), emitted=text.emitted)
        # 5. Forget the rejected tokens: the cache holds all of the text but its last token.
        target.truncate(len(text.tokens) + verdict.accepted)
        done = Round(k, ended_early or reason, draft.tokens, verdict.accepted, verdict.next, verdict.kind)
        text.add(done)
        policy.observe(done, RoundTiming(draft=drafted - began, total=time.perf_counter() - began))
    return text.generation(prefilled - start, time.perf_counter() - prefilled, drafter.passes)


class _Text:
    """The growing text: ends it at exactly the right token and keeps the trace true to what was emitted."""

    def __init__(
        self,
        target: LanguageModel,
        prompt: Sequence[int],
        max_new_tokens: int,
        eos_ids: Sequence[int],
        stop_when: StopWhen | None,
        on_token: OnToken | None,
    ) -> None:
        self.tokens = list(prompt)
        self.prompt_tokens = len(self.tokens)
        self.trace: list[Round] = []
        self.finished: FinishReason | None = None
        self._eos, self._stop_when, self._on_token = frozenset(eos_ids), stop_when, on_token
        if not self.tokens:
            raise UsageError(
                "the prompt has no tokens", fix="begin with at least the model's beginning-of-text token"
            )
        if max_new_tokens < 0:
            raise UsageError(f"max_new_tokens must be >= 0, got {max_new_tokens}")
        bad = next((t for t in self.tokens if not 0 <= t < target.vocab_size), None)
        if bad is not None:
            raise UsageError(
                f"token id {bad} is outside the vocabulary of {target.vocab_size}", where="prompt"
            )
        space = target.capacity - len(self.tokens)
        if space < 0:
            raise UsageError(
                f"{len(self.tokens)} tokens do not fit a context of {target.capacity}",
                where="prompt",
                fix="shorten it or raise the context size",
            )
        self.room = min(max_new_tokens, space)
        self._full: FinishReason = "length" if max_new_tokens <= space else "context"
        if self.room == 0:
            self.finished = self._full

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def add(self, candidate: Round) -> None:
        """Emit a round's tokens one by one, up to the one that ends the text, and record what was emitted."""
        emitted = candidate.emitted
        for count, token in enumerate(emitted, start=1):
            self.tokens.append(token)
            self.room -= 1
            cancelled = self._on_token is not None and self._on_token(token) is False
            if token in self._eos:
                self.finished = "eos"
            elif self._stop_when is not None and self._stop_when(self.tokens[self.prompt_tokens :]):
                self.finished = "stop"
            elif cancelled:
                self.finished = "cancelled"
            elif self.room == 0:
                self.finished = self._full
            if self.finished and count < len(emitted):
                kept = emitted[:count]
                candidate = Round(candidate.k, candidate.reason, kept, count, None, "stop")
                break
        self.trace.append(candidate)

    def generation(self, prefill: float, decode: float, draft_passes: int = 0) -> Generation:
        assert self.finished is not None
        return Generation(
            tokens=self.tokens[self.prompt_tokens :],
            finish_reason=self.finished,
            trace=self.trace,
            telemetry=Telemetry.of(self.trace, draft_passes),
            seconds={"prefill": prefill, "decode": decode},
        )
