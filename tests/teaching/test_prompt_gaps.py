"""Each prompt that a notebook shows has clear greedy choices, so its stored answer survives another processor."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import Tensor

from specdec_ref.checkpoints import LoadedModel
from specdec_ref.decoding import autoregressive
from specdec_ref.runner import Runner
from specdec_ref.teaching.prompts import MIN_GAP, PROMPTS, TeachingPrompt


class GapRunner(Runner):
    """A runner that notes the distance between the two best logits of every row it scores."""

    gaps: list[float]

    def forward(self, tokens: Sequence[int]) -> Tensor:
        logits = super().forward(tokens)
        best, second = logits.topk(2, dim=-1).values.unbind(-1)
        self.gaps += (best - second).tolist()
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
def test_every_greedy_choice_is_clear(smollm2: LoadedModel, prompt: TeachingPrompt) -> None:
    assert smollm2.tokenizer is not None
    runner = GapRunner(smollm2.model, 256, vocab_size=smollm2.tokenizer.vocab_size)
    runner.gaps = []
    ids = smollm2.tokenizer.chat([{"role": "user", "content": prompt.text}])
    made = autoregressive(runner, ids, max_new_tokens=prompt.tokens, eos_ids=smollm2.eos_ids)
    assert len(made.tokens) == prompt.tokens, "`tokens` is longer than the answer"
    assert min(runner.gaps) >= MIN_GAP
