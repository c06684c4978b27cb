"""Whether two models can work as target and draft: ids must mean the same to both."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from specdec_ref.errors import CheckpointError
from specdec_ref.tokenizer import Tokenizer

if TYPE_CHECKING:
    from specdec_ref.checkpoints import LoadedModel
    from specdec_ref.checkpoints.feature import LoadedFeatureDraft


def check_same_tokenizer(target: LoadedModel, draft: LoadedModel | LoadedFeatureDraft) -> None:
    """Raise unless both models use the same tokenizer, compared by content.

    The number of embedding rows may differ: vocabularies are padded to round sizes (151936, 152064) beyond the tokens
    that exist. A draft without a tokenizer of its own names its target's fingerprint in `config.json`.

    Raises:
        CheckpointError: a token differs (the first one is named), or the draft was made for another tokenizer.
    """
    where = f"target {target.name}, draft {draft.name}"
    if target.tokenizer is not None and draft.tokenizer is not None:
        if target.tokenizer.fingerprint != draft.tokenizer.fingerprint:
            difference = _first_difference(target.tokenizer, draft.tokenizer)
            raise CheckpointError(
                f"the tokenizers differ: {difference}",
                where=where,
                fix="choose a draft made for this target's tokenizer",
            )
    elif target.tokenizer_sha256 != draft.tokenizer_sha256:
        raise CheckpointError(
            f"the draft was made for tokenizer {_short(draft.tokenizer_sha256)}, "
            f"the target has {_short(target.tokenizer_sha256)}",
            where=where,
            fix="choose a draft made for this target's tokenizer",
        )
    tokenizer = target.tokenizer or draft.tokenizer
    needed = tokenizer.vocab_size if tokenizer is not None else target.model.config.vocab_size
    for model in (target, draft):
        rows = model.model.config.vocab_size
        if rows < needed:
            raise CheckpointError(
                f"{needed} tokens exist, but {model.name} has rows for only {rows}", where=where
            )


def _first_difference(target: Tokenizer, draft: Tokenizer) -> str:
    for kind, singular in (("vocabulary", "token"), ("specials", "special token")):
        ours, theirs = dict(target.content[kind]), dict(draft.content[kind])
        for id in sorted(ours.keys() | theirs.keys()):
            if ours.get(id) != theirs.get(id):
                target_has, draft_has = _shown(ours.get(id)), _shown(theirs.get(id))
                return f"{singular} {id} is {target_has} for the target and {draft_has} for the draft"
    for rank, (ours, theirs) in enumerate(zip_longest(target.content["merges"], draft.content["merges"])):
        if ours != theirs:
            return f"merge {rank} is {_shown(ours)} for the target and {_shown(theirs)} for the draft"
    return "their vocabularies list the same token under several ids"


def _shown(value: object) -> str:
    return "absent" if value is None else repr(value)


def _short(fingerprint: str | None) -> str:
    return "unknown" if fingerprint is None else fingerprint[:12]
