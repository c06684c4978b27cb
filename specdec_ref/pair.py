"""A target and its drafter, loaded and ready to generate: what the command line, benchmarks and notebooks start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from specdec_ref import checkpoints
from specdec_ref.checkpoints import LoadedModel
from specdec_ref.checkpoints.feature import is_feature_draft, load_feature_draft
from specdec_ref.drafters import Drafter, FeatureDrafter, FirstMatch, ModelDrafter, PromptLookup
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.runner import Runner
from specdec_ref.tokenizer import Tokenizer

DRAFTERS = "draft, lookup, lookup+draft, none, another model's name, a folder or a hub id"


@dataclass(frozen=True)
class Pair:
    """A target with its tokenizer and, unless decoding is plain, a drafter.

    Attributes:
        target: the model that decides.
        draft: the draft model's runner; None with a feature-level draft, prompt lookup or no drafter.
        drafter: None for plain decoding.
        tokenizer: the target's.
        eos_ids: tokens that end an answer.
        bos_id: the token to begin an empty prompt with.
        name: "target + drafter", for tables.
    """

    target: Runner
    draft: Runner | None
    drafter: Drafter | None
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    bos_id: int | None
    name: str

    def prompt_ids(self, text: str, *, raw: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of a user's text: as one chat turn where the model has a chat template, or as it stands.

        Raises:
            UsageError: nothing to begin with: an empty raw prompt and a model without a beginning-of-text token.
        """
        if not raw and self.tokenizer.has_chat_template:
            return self.tokenizer.chat([{"role": "user", "content": text}])
        ids = self.tokenizer.encode(text, parse_special=parse_special)
        if not ids and self.bos_id is not None:
            return [self.bos_id]
        if not ids:
            raise UsageError(
                "the prompt is empty and the model has no beginning-of-text token", fix="give some text"
            )
        return ids


def load_pair(
    target: str | Path = "smollm2-135m",
    draft: str | Path = "draft",
    *,
    dtype: torch.dtype = torch.float32,
    draft_dtype: torch.dtype | None = None,
    context: int = 2048,
    quiet: bool = False,
) -> Pair:
    """Load a target and what drafts for it.

    Args:
        target: model name, folder or hub id.
        draft: the same, or "lookup" (prompt lookup), "none" (plain decoding), or "lookup+NAME": lookup first, then the model.
        dtype: of the target.
        draft_dtype: of the draft; default: the target's.
        context: tokens that the caches hold.
        quiet: no progress on downloads.

    Raises:
        CheckpointError: a model cannot be loaded, or the two tokenizers differ.
        UsageError: `context` is below 1.
    """
    big = checkpoints.load(target, dtype, quiet=quiet)
    if big.tokenizer is None:
        raise CheckpointError(
            "there is no tokenizer.json beside the weights",
            where=str(big.folder),
            fix="a target needs its tokenizer",
        )
    vocab = _vocabulary(big)
    runner = Runner(big.model, context, vocab_size=vocab)
    lookup, _, model = str(draft).rpartition("+")
    if str(draft) in ("lookup", "none"):
        lookup, model = ("lookup" if draft == "lookup" else ""), ""
    if lookup not in ("", "lookup"):
        raise UsageError(f"unknown drafter {str(draft)!r}", fix=f"use one of: {DRAFTERS}")
    drafters: list[Drafter] = [PromptLookup()] if lookup else []
    small: Runner | None = None
    if model and is_feature_draft(model):
        head = load_feature_draft(model, draft_dtype or dtype)
        checkpoints.check_same_tokenizer(big, head)
        drafters.append(FeatureDrafter(head.model, runner))
    elif model:
        loaded = checkpoints.load(model, draft_dtype or dtype, quiet=quiet)
        checkpoints.check_same_tokenizer(big, loaded)
        small = Runner(loaded.model, context)
        drafters.append(ModelDrafter(small, vocab))
    drafter = None if not drafters else drafters[0] if len(drafters) == 1 else FirstMatch(*drafters)
    return Pair(runner, small, drafter, big.tokenizer, big.eos_ids, big.bos_id, f"{big.name} + {draft}")


def _vocabulary(loaded: LoadedModel) -> int:
    """Rows of the head that stand for a token; the rest pads the matrix."""
    size = loaded.model.config.vocab_size
    return min(size, loaded.tokenizer.vocab_size) if loaded.tokenizer is not None else size


class StopStrings:
    """Ends a text when its decoded form contains one of the given strings.

    Args:
        tokenizer: decodes the tokens.
        stops: strings; none may be empty.
        skip_special: whether special tokens are left out of the text searched.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, skip_special: bool = True) -> None:
        if any(not stop for stop in stops):
            raise UsageError("a stop string must not be empty", where="--stop")
        self.tokenizer, self.stops, self.skip_special = tokenizer, list(stops), skip_special

    def __call__(self, tokens: Sequence[int]) -> bool:
        """Whether the text of `tokens` (all generated so far) holds a stop string."""
        return self.cut(self._text(tokens)) is not None

    def cut(self, text: str) -> str | None:
        """`text` up to its earliest stop string; None if it has none."""
        at = [found for stop in self.stops if (found := text.find(stop)) >= 0]
        return text[: min(at)] if at else None

    def _text(self, tokens: Sequence[int]) -> str:
        # A stop string spans at most its bytes in tokens; a few more keep split characters whole.
        window = max(len(stop.encode()) for stop in self.stops) + 8
        return self.tokenizer.decode(tokens[-window:], skip_special=self.skip_special)


def stop_condition(tokenizer: Tokenizer, stops: Sequence[str]) -> Callable[[Sequence[int]], bool] | None:
    """A `stop_when` for the decoding loops, or None when there is nothing to stop at."""
    return StopStrings(tokenizer, stops) if stops else None
