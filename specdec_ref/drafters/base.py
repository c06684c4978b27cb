"""The protocol between the decoding loop and whatever drafts for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specdec_ref.acceptance import Draft
from specdec_ref.rng import Uniforms
from specdec_ref.sampling import Sampling


@dataclass(frozen=True)
class Request:
    """What the loop wants drafted.

    Attributes:
        tokens: prompt and text so far, all of it committed. The draft's first token follows the last of these.
        k: most tokens to propose.
        sampling: processors to apply to the draft's own distribution, the target's exactly.
        uniforms: source of randomness; use Purpose.DRAFT with `round_index` and the slot.
        round_index: number of the round.
        confident: asked before each token with the draft's largest probability; False ends the draft there. None: no limit.
    """

    tokens: Sequence[int]
    k: int
    sampling: Sampling = field(default_factory=Sampling)
    uniforms: Uniforms = field(default_factory=lambda: Uniforms(0))
    round_index: int = 0
    confident: Callable[[float], bool] | None = None


class Drafter(Protocol):
    """Proposes up to K tokens a round.

    A drafter keeps its own state in step with the text by comparing: what it holds and the text does not is rolled back
    when it is next asked. The loop never tells it what was accepted, so it cannot be told wrongly.

    Attributes:
        passes: forward passes made since `begin`.
    """

    @property
    def passes(self) -> int: ...

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a new text: forget the old one and take in the prompt."""
        ...

    def propose(self, request: Request) -> tuple[Draft, str | None]:
        """Return the draft and, if it is shorter than asked, the reason."""
        ...
