"""Models for tests: a mock whose logits are a table, tiny random decoders, and wrappers that watch or break a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec_ref.acceptance import Draft
from specdec_ref.drafters.base import Request
from specdec_ref.model import Decoder, ModelConfig
from specdec_ref.runner import LanguageModel, Runner


class TableModel:
    """A Markov chain as a language model: row i of the table scores what follows token i.

    Serves as target (the `LanguageModel` protocol) and, inside a `ModelDrafter`, as draft: a table with fewer columns than
    rows is a reduced head whose column c scores token `head_ids[c]`.

    Attributes:
        passes: the number of tokens fed by each `forward`.
    """

    def __init__(
        self, logits: Tensor, *, capacity: int = 4096, head_ids: Sequence[int] | None = None
    ) -> None:
        self.table = logits
        self.vocab_size = logits.shape[1]
        self.capacity = capacity
        self.head_ids = None if head_ids is None else torch.tensor(head_ids)
        self.passes: list[int] = []
        self.held: list[int] = []
        self._known: dict[tuple[int, ...], Tensor] = {}

    @property
    def length(self) -> int:
        return len(self.held)

    def forward(self, tokens: Sequence[int]) -> Tensor:
        self.prefill(tokens)
        self.passes.append(len(tokens))
        key = tuple(tokens)
        if key not in self._known:  # statistical tests make the same few passes thousands of times
            self._known[key] = self.table[list(tokens)]
        return self._known[key]

    def prefill(self, tokens: Sequence[int]) -> None:
        self.held += tokens
        assert len(self.held) <= self.capacity, "the loop overfilled the model's context"

    def truncate(self, length: int) -> None:
        assert 0 <= length <= len(self.held), "a model cannot roll forward"
        del self.held[length:]

    def reset(self) -> None:
        self.held = []


def random_table(vocab: int, seed: int, *, spread: float = 1.5, columns: int | None = None) -> Tensor:
    """Logits [vocab, columns or vocab] of independent normals with that spread."""
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(vocab, columns or vocab, generator=generator)


def tiny_config(
    vocab: int = 31, *, layers: int = 2, context: int = 128, head_rows: int | None = None
) -> ModelConfig:
    """Two layers with grouped queries (4 heads on 2 key heads) of width 8: enough to get every index wrong."""
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=24,
        max_position_embeddings=context,
        head_rows=head_rows,
    )


def tiny_decoder(
    seed: int,
    *,
    vocab: int = 31,
    layers: int = 2,
    context: int = 128,
    head_ids: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Decoder:
    """A decoder with random weights; float64 by default, where greedy equality is strict."""
    generator = torch.Generator().manual_seed(seed)
    head_rows = None if head_ids is None else len(head_ids)
    model = Decoder(tiny_config(vocab, layers=layers, context=context, head_rows=head_rows))
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        scale = 0.1 if name.endswith("norm.weight") else 1.5 * parameter.shape[-1] ** -0.5
        parameter.data = (noise * scale + name.endswith("norm.weight")).to(dtype)
    if head_ids is not None:
        model.head_ids = torch.tensor(head_ids)
    return model


def perturbed(model: Decoder, seed: int, amount: float = 0.15) -> Decoder:
    """A model of the same shape that often agrees with `model`: its weights plus relative noise."""
    generator = torch.Generator().manual_seed(seed)
    other = Decoder(model.config)
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        noise = torch.randn(theirs.shape, generator=generator).to(theirs)
        mine.data = theirs + amount * theirs.std() * noise
    return other


def with_reduced_head(model: Decoder, head_ids: Sequence[int]) -> Decoder:
    """The same network, of which only the logits of `head_ids` (ascending) are left."""
    config = ModelConfig(**{**vars(model.config), "head_rows": len(head_ids)})
    other = Decoder(config)
    state = model.state_dict()
    state["head.weight"] = state["head.weight"][list(head_ids)]
    for name, parameter in other.named_parameters():
        parameter.data = state[name]
    other.head_ids = torch.tensor(head_ids)
    return other


def tiny_target(seed: int, **options: object) -> Runner:
    """A `Runner` around `tiny_decoder`."""
    model = tiny_decoder(seed, **options)  # type: ignore[arg-type]
    return Runner(model, model.config.max_position_embeddings)


class Watched:
    """Passes everything on to a model and keeps the logits of every forward pass; may be told to fail at one.

    Attributes:
        calls: (position of the first token, tokens, logits) of each forward pass.
        before: called with the number of the pass before it is made; raise there to break it.
    """

    def __init__(self, inner: LanguageModel, before: Callable[[int], None] | None = None) -> None:
        self.inner, self.before = inner, before
        self.calls: list[tuple[int, list[int], Tensor]] = []

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    @property
    def length(self) -> int:
        return self.inner.length

    def forward(self, tokens: Sequence[int]) -> Tensor:
        if self.before is not None:
            self.before(len(self.calls))
        start = self.inner.length
        logits = self.inner.forward(tokens)
        self.calls.append((start, list(tokens), logits))
        return logits

    def prefill(self, tokens: Sequence[int]) -> None:
        self.inner.prefill(tokens)

    def truncate(self, length: int) -> None:
        self.inner.truncate(length)

    def reset(self) -> None:
        self.calls = []
        self.inner.reset()


class Scripted:
    """A drafter that proposes what a function of the text and k says."""

    passes = 0

    def __init__(self, script: Callable[[list[int], int], Sequence[int]]) -> None:
        self.script = script
        self.requests: list[Request] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self.requests = []

    def propose(self, request: Request) -> tuple[Draft, str | None]:
        self.requests.append(request)
        return Draft(list(self.script(list(request.tokens), request.k))), None
