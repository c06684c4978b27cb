"""c is timed in the decoding loop, whatever drafts."""

from __future__ import annotations

import time

from specdec_ref.acceptance import Draft
from specdec_ref.bench.loop_costs import draft_cost
from specdec_ref.drafters import PromptLookup
from specdec_ref.drafters.base import Request
from tests.helpers.models import TableModel, random_table


class Slow(TableModel):
    """A target whose pass takes 20 ms."""

    def forward(self, tokens):
        time.sleep(0.02)
        return super().forward(tokens)


class Sleeper:
    """A drafter that takes 5 ms a token."""

    passes = 0

    def begin(self, prompt):
        pass

    def propose(self, request: Request):
        time.sleep(0.005 * request.k)
        return Draft([0] * request.k), None


def test_a_drafter_a_quarter_as_slow_as_its_target_costs_about_a_quarter():
    # Wide: beside busy processes a sleep takes longer than asked.
    assert 0.1 < draft_cost(Slow(random_table(6, 0)), Sleeper(), [1, 2], tokens=12) < 0.9


def test_a_drafter_that_never_drafts_k_tokens_costs_nothing():
    assert draft_cost(TableModel(random_table(6, 0)), PromptLookup(), [1, 2], k=5, tokens=4) == 0.0
