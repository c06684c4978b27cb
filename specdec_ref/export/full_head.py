"""A draft with a reduced head as a plain Llama model that never proposes the tokens left out.

Other runtimes score the whole vocabulary, and their Llama has no bias in the head to forbid a token with. So the network
gets one more channel that carries a positive constant to the head, and the rows of the missing tokens read that channel
alone, with a large negative weight.

Let D be the width, D' the new one, S the sum of squares of the residual stream x, w a norm's gain. The norm must not change:

    w x / sqrt(S / D + eps)   =   w' x / sqrt((S + c^2) / D' + eps')

which holds for every x with  w' = w sqrt(D / D'),  c^2 = D eps / 2,  eps' = D eps / (2 D').  The constant c sits in the
embedding; no layer reads it (gain 0) or writes to it (zero rows). Behind the last norm, with gain g, it is
g c / sqrt((S + c^2) / D' + eps'), positive whatever x is, so a missing token's logit is that times -`FORBIDDING`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.errors import CheckpointError
from specdec_ref.model import Decoder, Layer

GAIN, FORBIDDING = 1e3, 6e4
"""g and the weight of a missing row. Both stay finite in float16, and so does g times the largest value of the channel,
sqrt(D' / 2); at a residual stream of root mean square r, far from 0, the logit is about -GAIN FORBIDDING c / r."""


def with_full_head(model: Decoder, *, multiple: int = 1) -> Decoder:
    """Return a decoder with one row per token that computes the same logits for the tokens of `model`'s reduced head.

    Args:
        model: any decoder; one with a whole head is returned as it is.
        multiple: of what the new width must be: 32 for block-quantised formats, the number of heads for transformers.

    Returns:
        a decoder of the next such width above D, its head untied. Logits of tokens outside the head are large and negative.

    Raises:
        CheckpointError: the model has query/key norms, which share the norms' epsilon but not their width.
    """
    if model.head_ids is None or model.head is None:
        return model
    c = model.config
    if c.qk_norm:
        raise CheckpointError("a reduced head cannot be widened in a model with query and key norms")
    wide = (c.hidden_size // multiple + 1) * multiple
    shrink = math.sqrt(c.hidden_size / wide)
    config = replace(
        c,
        hidden_size=wide,
        head_rows=None,
        tie_word_embeddings=False,
        rms_norm_eps=c.rms_norm_eps * c.hidden_size / (2 * wide),
    )
    other = Decoder(config).to(model.dtype).eval()
    with torch.no_grad():
        other.embed.copy_(_wider(model.embed, wide))
        other.embed[:, c.hidden_size] = math.sqrt(c.hidden_size * c.rms_norm_eps / 2)
        other.norm.weight.copy_(_wider(model.norm.weight * shrink, wide))
        other.norm.weight[c.hidden_size] = GAIN
        assert other.head is not None
        other.head.weight.zero_()
        other.head.weight[:, c.hidden_size] = -FORBIDDING
        other.head.weight[model.head_ids] = _wider(model.head.weight, wide)
        for mine, theirs in zip(model.layers, other.layers, strict=True):
            assert isinstance(mine, Layer) and isinstance(theirs, Layer)
            _widen_layer(mine, theirs, shrink)
    return other


def _widen_layer(mine: Layer, theirs: Layer, shrink: float) -> None:
    wide = theirs.config.hidden_size
    theirs.attention_norm.weight.copy_(_wider(mine.attention_norm.weight * shrink, wide))
    theirs.mlp_norm.weight.copy_(_wider(mine.mlp_norm.weight * shrink, wide))
    for name in ("qkv", "gate_up"):  # read the stream
        getattr(theirs, name).weight.copy_(_wider(getattr(mine, name).weight, wide))
        if getattr(mine, name).bias is not None:
            getattr(theirs, name).bias.copy_(getattr(mine, name).bias)
    for name in ("out", "down"):  # write to it
        getattr(theirs, name).weight.copy_(_wider(getattr(mine, name).weight.t(), wide).t())
        if getattr(mine, name).bias is not None:
            getattr(theirs, name).bias.copy_(_wider(getattr(mine, name).bias, wide))


def _wider(tensor: Tensor, width: int) -> Tensor:
    """[..., D] -> [..., width], filled up with zeros."""
    return F.pad(tensor, (0, width - tensor.shape[-1]))
