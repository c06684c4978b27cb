"""Several drafters in order of preference."""

from __future__ import annotations

from collections.abc import Sequence

from specdec_ref.acceptance import Draft
from specdec_ref.drafters.base import Drafter, Request


class FirstMatch:
    """Asks each drafter in turn and takes the first draft that is not empty: lookup first, a model where it is silent.

    Args:
        drafters: cheapest first.
    """

    def __init__(self, *drafters: Drafter) -> None:
        self.drafters = drafters

    @property
    def passes(self) -> int:
        return sum(drafter.passes for drafter in self.drafters)

    def begin(self, prompt: Sequence[int]) -> None:
        """Start all of them."""
        for drafter in self.drafters:
            drafter.begin(prompt)

    def propose(self, request: Request) -> tuple[Draft, str | None]:
        """The first non-empty draft, or the last drafter's reason for having none."""
        draft, reason = Draft(), None
        for drafter in self.drafters:
            draft, reason = drafter.propose(request)
            if draft.tokens:
                break
        return draft, reason
