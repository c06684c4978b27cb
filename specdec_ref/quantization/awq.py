"""Activation-aware weight quantization: give more of the grid to the channels that carry more signal.

Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration" (2023). An input channel whose
activations are large makes its rounding errors count more. Multiplying that channel's weights by s > 1 before rounding,
and dividing the activations by s, makes the errors s times smaller, as long as the channel does not stretch the grid of
its group. s = a^alpha for the mean magnitude a of the channel's activations; alpha in [0, 1) is searched per place. Then the
grid is narrowed (clipping) where a few large weights cost the many small ones too much.

The division goes into the norm or linear before (`channels.rescale`), so the quantized model has the shape of the plain one.

The error minimised is that of the linear's output over all calibration tokens, E|x (W - W')^T|^2 = tr(D G D^T) with
D = W - W' and G = E[x^T x]: one matrix per place stands for any number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdec_ref.errors import UsageError
from specdec_ref.model import Layer, ModelConfig, rope_table
from specdec_ref.quantization.channels import PLACES, Place, from_columns, rescale, to_columns
from specdec_ref.quantization.grid import rounded
from specdec_ref.quantization.recipe import Recipe
from specdec_ref.quantization.scheme import Scheme
from specdec_ref.quantization.source import Source
from specdec_ref.quantization.tensors import EMBEDDING

ALPHAS = tuple(i / 10 for i in range(10))
CLIPS = (0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
_UNCLIPPED = ("self_attn.q_proj.weight", "self_attn.k_proj.weight")
"""Queries and keys multiply each other: the error of one alone says little about clipping it (as in the paper's code)."""


@dataclass(frozen=True)
class Inputs:
    """What is known of the activations that a linear reads.

    Attributes:
        gram: [in, in], the mean of x^T x over tokens.
        magnitude: [in], the mean magnitude of each input.
    """

    gram: Tensor
    magnitude: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Inputs:
        """x [tokens, in] float32."""
        return cls(x.T @ x / len(x), x.abs().mean(0))

    def divided(self, columns: Tensor) -> Inputs:
        """Of the activations divided by `columns` [in]."""
        return Inputs(self.gram / torch.outer(columns, columns), self.magnitude / columns)


@dataclass
class Adjusted:
    """A layer ready to be rounded.

    Attributes:
        tensors: float32 by name without the layer's prefix; channels are rescaled.
        clips: weight name -> [out, groups] share of each group's range that its grid spans.
        alphas: place -> the alpha that was best; 0 is plain rounding.
        grams: weight name -> Gram matrix of the inputs it reads after rescaling.
    """

    tensors: dict[str, Tensor]
    clips: dict[str, Tensor] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    grams: dict[str, Tensor] = field(default_factory=dict)


def output_error(difference: Tensor, gram: Tensor) -> Tensor:
    """Mean squared error of each output [out] for a weight that is off by `difference` [out, in]."""
    return ((difference @ gram) * difference).sum(1)


def candidate_scale(magnitude: Tensor, alpha: float) -> Tensor:
    """s = magnitude^alpha, normalised so that the largest and the smallest have the product 1."""
    scale = magnitude.pow(alpha).clamp(min=1e-4)
    return scale / (scale.max() * scale.min()).sqrt()


def search_scale(
    weights: Sequence[Tensor], inputs: Inputs, scheme: Scheme, place: Place | None, config: ModelConfig | None
) -> tuple[Tensor, float]:
    """The scale of the best alpha, and that alpha.

    Args:
        weights: all weights [out, in] that read the input.
        inputs: statistics of that input.
        scheme: the grid they will be rounded to.
        place, config: where channels must share a scale; None: every column has one of its own.

    Returns:
        (scale [scale_width], alpha); the scale is exactly 1 where alpha is 0.
    """
    magnitude = inputs.magnitude
    if place is not None and config is not None:
        magnitude = from_columns(place, magnitude, config)
    best: tuple[float, Tensor, float] | None = None
    for alpha in ALPHAS:
        scale = candidate_scale(magnitude, alpha)
        columns = scale if place is None or config is None else to_columns(place, scale, config)
        error = 0.0
        for weight in weights:
            difference = rounded(weight * columns, scheme).div_(columns).sub_(weight)
            error += float(output_error(difference, inputs.gram).sum())
        if best is None or error < best[0]:
            best = (error, scale, alpha)
    assert best is not None
    return best[1], best[2]


def search_clip(weight: Tensor, inputs: Inputs, scheme: Scheme) -> Tensor:
    """The share of each group's range [out, groups] that its grid should span.

    Every group is judged by its own part of the output's error; a row keeps its choice only if the whole row is the better
    for it.
    """
    size = scheme.group_size(weight.shape[1])
    blocks = torch.stack(  # [groups, size, size], the diagonal blocks of the Gram matrix
        [inputs.gram[i : i + size, i : i + size] for i in range(0, weight.shape[1], size)]
    )

    def group_error(difference: Tensor) -> Tensor:
        by_group = difference.view(len(weight), -1, size).transpose(0, 1)  # [groups, out, size]
        return ((by_group @ blocks) * by_group).sum(-1).T

    plain = rounded(weight, scheme) - weight
    best, lowest = torch.ones(len(weight), len(blocks)), group_error(plain)
    for clip in CLIPS:
        share = torch.full_like(best, clip)
        error = group_error(rounded(weight, scheme, clip=share) - weight)
        best, lowest = torch.where(error < lowest, share, best), torch.minimum(error, lowest)
    clipped = rounded(weight, scheme, clip=best) - weight
    better = output_error(clipped, inputs.gram) < output_error(plain, inputs.gram)
    return torch.where(better[:, None], best, torch.ones_like(best))


def adjust(
    tensors: dict[str, Tensor], inputs: dict[str, Inputs], scheme: Scheme, config: ModelConfig
) -> Adjusted:
    """Choose scales, then clipping, for one layer.

    Args:
        tensors: of the layer, float32, by name without the layer's prefix.
        inputs: place -> statistics of the input there, from the unquantized model.
        scheme: the grid of all its linears.
        config: of the model.
    """
    layer = Adjusted(dict(tensors))
    for place in PLACES:
        weights = [layer.tensors[name] for name in place.readers]
        scale, alpha = search_scale(weights, inputs[place.name], scheme, place, config)
        layer.alphas[place.name] = alpha
        if alpha > 0:
            rescale(layer.tensors, place, scale, config)
        divided = inputs[place.name].divided(to_columns(place, scale, config))
        for name in place.readers:
            layer.grams[name] = divided.gram
            if name not in _UNCLIPPED:
                layer.clips[name] = search_clip(layer.tensors[name], divided, scheme)
    return layer


def adjusted_layers(
    source: Source,
    recipe: Recipe,
    calibration: Sequence[Sequence[int]],
    known: dict[int, dict[str, Inputs]] | None = None,
) -> Iterator[Adjusted]:
    """AWQ, layer by layer: one layer of the model is in memory at a time.

    Args:
        source: the model.
        recipe: whose `body` is the grid.
        calibration: token sequences; their activations decide scales and clipping.
        known: statistics by layer, kept there for quantizing the same model again with other bits; empty or complete.

    Raises:
        UsageError: there is no calibration text.
    """
    texts = [torch.tensor(list(tokens)) for tokens in calibration if len(tokens)]
    if not texts:
        raise UsageError(
            "the calibration set is empty", where="AWQ", fix="give at least one text, or use --scheme rtn"
        )
    assert recipe.body is not None
    config = source.config
    embedding = source.take(EMBEDDING)
    if max(int(text.max()) for text in texts) >= len(embedding):
        raise UsageError(
            "a calibration token is outside the vocabulary", where="AWQ", fix="use this model's tokenizer"
        )
    hidden = [F.embedding(text, embedding).float() for text in texts]
    del embedding
    complete = known is not None and len(known) == config.num_hidden_layers
    for index in range(config.num_hidden_layers):
        tensors = source.layer(index)
        if known is not None and complete:
            inputs = known[index]
        else:
            hidden, inputs = run_layer(tensors, config, hidden)
        if known is not None:
            known[index] = inputs
        yield adjust(tensors, inputs, recipe.body, config)


def rounded_layers(source: Source) -> Iterator[Adjusted]:
    """The layers as they are, for plain rounding."""
    for index in range(source.config.num_hidden_layers):
        yield Adjusted(source.layer(index))


@torch.no_grad()
def run_layer(
    tensors: dict[str, Tensor], config: ModelConfig, hidden: Sequence[Tensor]
) -> tuple[list[Tensor], dict[str, Inputs]]:
    """Put every text through one layer.

    Args:
        tensors: of the layer.
        config: of the model.
        hidden: the residual stream [T, D] of every text.

    Returns:
        the stream after the layer, and place -> statistics of the inputs there over all tokens.
    """
    layer = Layer(config).float()
    layer.load(lambda name, *shape: tensors[name])
    seen: dict[str, list[Tensor]] = {place.name: [] for place in PLACES}
    for name, found in seen.items():
        # The hook is bound to this iteration's list, not to the loop variable.
        def keep(module: nn.Module, arguments: tuple[Tensor], found: list[Tensor] = found) -> None:
            found.append(arguments[0])

        layer.get_submodule(name).register_forward_pre_hook(keep)
    longest = max(len(x) for x in hidden)
    cos, sin = rope_table(config, longest, hidden[0])
    mask = torch.full((longest, longest), -torch.inf).triu(1)
    after = [layer(x, cos[: len(x)], sin[: len(x)], mask[: len(x), : len(x)], None) for x in hidden]
    return after, {name: Inputs.of(torch.cat(found)) for name, found in seen.items()}
