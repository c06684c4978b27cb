"""The nano pair: a target and a draft of the Llama family, trained in less than a minute, small enough to commit.

They are good for nothing but tests, and for these they are complete: grouped-query attention, tied embeddings, a
chat template, a draft with a reduced head that agrees with the target most of the time but not always.

The committed weights can be made again bit for bit, on other processors and with other numbers of threads too.
Training runs in float64, where these differ by some 1e-16 per operation. Training amplifies that, 1e10-fold in 300
steps; so every 25 steps weights and optimiser are rounded to bfloat16, which wipes out such differences in time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdec_ref.golden.corpus import chat_text, conversations
from specdec_ref.golden.nano_tokenizer import VOCAB_SIZE, nano_tokenizer
from specdec_ref.model import Decoder, Layer, ModelConfig
from specdec_ref.tokenizer import Tokenizer

TARGET, DRAFT = "nano-target", "nano-draft"

TARGET_CONFIG = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=96,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=96,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)
HEAD_ROWS = 192
DRAFT_CONFIG = ModelConfig(
    vocab_size=VOCAB_SIZE,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=64,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    head_rows=HEAD_ROWS,
)

_ROW, _BATCH = 96, 6
_ROUND_EVERY = 25
_DATA_SEED, _TARGET_SEED, _DRAFT_SEED = 2, 0, 1


@dataclass(frozen=True)
class NanoPair:
    """Both models with their tokenizer; the weights are bfloat16 values held in float64."""

    target: Decoder
    draft: Decoder
    tokenizer: Tokenizer


def train_pair(target_steps: int = 300, draft_steps: int = 130) -> NanoPair:
    """Train the target on the corpus, then the draft on the target's probabilities.

    Args:
        target_steps: optimiser steps for the target; fewer in tests of determinism.
        draft_steps: the same for the draft.
    """
    tokenizer = nano_tokenizer()
    rows = _rows(tokenizer, max(target_steps, draft_steps) * _BATCH)
    target = _train_target(rows, target_steps)
    draft = _distil_draft(target, rows, draft_steps)
    return NanoPair(target, draft, tokenizer)


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread for the block: decoding with models this small, several only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rows(tokenizer: Tokenizer, count: int) -> Tensor:
    """[count, _ROW + 1] token ids: each row is the beginning of one long conversation."""
    source = conversations(_DATA_SEED, 10**9)
    rows: list[list[int]] = []
    while len(rows) < count:
        turns, ids = [], list[int]()
        while len(ids) <= _ROW:
            turns += next(source)
            ids = tokenizer.encode(chat_text(turns), parse_special=True)
        rows.append(ids[: _ROW + 1])
    return torch.tensor(rows)


def _train_target(rows: Tensor, steps: int) -> Decoder:
    model = _fresh(TARGET_CONFIG, _TARGET_SEED)

    def loss(batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    _train(model, loss, rows, steps, learning_rate=6e-3)
    return model


def _distil_draft(target: Decoder, rows: Tensor, steps: int) -> Decoder:
    # The full embedding is trained as the head's rows too; the reduced head is cut out of it at the end.
    full = _fresh(dataclasses.replace(DRAFT_CONFIG, head_rows=None), _DRAFT_SEED)
    head_ids = frequent_tokens(rows)

    def loss(batch: Tensor) -> Tensor:
        with torch.no_grad():
            p = target(batch[:, :-1]).softmax(-1)[..., head_ids]
        log_q = F.linear(full.hidden_states(batch[:, :-1]), full.embed[head_ids]).log_softmax(-1)
        return -(p * log_q).sum(-1).mean()

    _train(full, loss, rows, steps, learning_rate=6e-3)
    return Decoder(DRAFT_CONFIG).double().load_weights(tensors(full) | {"specdec.head_ids": head_ids})


def frequent_tokens(rows: Tensor) -> Tensor:
    """The tokens that the draft can propose, ascending: the most frequent ones."""
    counts = torch.bincount(rows.flatten(), minlength=VOCAB_SIZE)
    return counts.sort(descending=True, stable=True).indices[:HEAD_ROWS].sort().values


def _fresh(config: ModelConfig, seed: int) -> Decoder:
    model = Decoder(config).double()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue  # the gains of the norms start at one
        scale = 0.05 if name == "embed" else parameter.shape[1] ** -0.5
        if name.endswith(("out.weight", "down.weight")):
            scale /= math.sqrt(2 * config.num_hidden_layers)
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale)
    return model


def _train(
    model: Decoder, loss_of: Callable[[Tensor], Tensor], rows: Tensor, steps: int, *, learning_rate: float
) -> None:
    """AdamW with a short warm-up and a linear decay; leaves the model frozen and rounded to bfloat16."""
    model.requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.05)
    for step in range(steps):
        if step and step % _ROUND_EVERY == 0:
            _round(model, optimiser)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / 20, 2 * (steps - step) / steps)
        loss = loss_of(rows[step * _BATCH : (step + 1) * _BATCH])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    _round(model, optimiser)
    model.requires_grad_(False)


@torch.no_grad()
def _round(model: Decoder, optimiser: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        averages = (optimiser.state[parameter][name] for name in ("exp_avg", "exp_avg_sq"))
        for tensor in (parameter, *averages):
            tensor.copy_(tensor.bfloat16())


def tensors(model: Decoder) -> dict[str, Tensor]:
    """The weights of a tied model under Hugging Face's Llama names, in the model's dtype."""
    c = model.config
    width, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    named: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embed,
        "model.norm.weight": model.norm.weight,
    }
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        q, k, v = layer.qkv.weight.split([width, kv_width, kv_width])
        gate, up = layer.gate_up.weight.chunk(2)
        parts = {
            "input_layernorm": layer.attention_norm.weight,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down.weight,
        }
        named |= {f"model.layers.{index}.{part}.weight": weight for part, weight in parts.items()}
    if model.head_ids is not None:
        named["specdec.head_ids"] = model.head_ids
    return {name: tensor.detach() for name, tensor in named.items()}
