"""The pair that the notebooks decode with, loaded once per kernel."""

from __future__ import annotations

import functools
from typing import NamedTuple

from specdec_ref.pair import load_pair
from specdec_ref.runner import Runner
from specdec_ref.tokenizer import Tokenizer


class TeachingPair(NamedTuple):
    """What a notebook needs to decode.

    Attributes:
        target: SmolLM2-135M-Instruct with its cache.
        draft: the small model with its cache.
        tokenizer: shared by both.
        eos_ids: tokens that end an answer.
    """

    target: Runner
    draft: Runner
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]

    def prompt_ids(self, text: str) -> list[int]:
        """Token ids of `text` as one user turn of a chat."""
        return self.tokenizer.chat([{"role": "user", "content": text}])


@functools.cache
def pair(context: int = 1024) -> TeachingPair:
    """Load target and draft in float32, without progress output; the second call returns the same pair.

    Args:
        context: tokens that each cache holds.
    """
    loaded = load_pair("smollm2-135m", "draft", context=context, quiet=True)
    if loaded.draft is None:
        raise RuntimeError("the committed draft did not load as a model")
    return TeachingPair(loaded.target, loaded.draft, loaded.tokenizer, loaded.eos_ids)
