"""transformers as an oracle: tiny random models of each family, in float32 as they are or truly in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SHAPE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def tiny(family: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """A model whose every weight, bias and norm is random and large enough for a mistake to show in the logits."""
    config_class, model_class = FAMILIES[family]
    model = model_class(config_class(**{**SHAPE, **settings})).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        norm = "norm" in name
        parameter.data = (
            1 + 0.2 * noise
            if norm
            else noise * (0.5 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5)
        )
    return model


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Make transformers compute in float64 where it hard-codes float32.

    RMSNorm and rotary angles are computed in float32 whatever the model's type, so a model in float64 would agree with
    ours to 1e-7 only. Both are replaced by the same formulas without the cast, for models made and run inside this
    block: `torch.float`, which the frequency formulas name, is float64 in it.
    """

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def rotary(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        assert self.inv_freq.dtype == torch.float64, "make the model inside the block as well"
        angles = position_ids[..., None].double() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "float", torch.float64))
        for module, prefix in (
            (modeling_llama, "Llama"),
            (modeling_qwen2, "Qwen2"),
            (modeling_qwen3, "Qwen3"),
        ):
            stack.enter_context(mock.patch.object(getattr(module, f"{prefix}RMSNorm"), "forward", norm))
            stack.enter_context(
                mock.patch.object(getattr(module, f"{prefix}RotaryEmbedding"), "forward", rotary)
            )
        yield


@torch.inference_mode()
def logits(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """ids [T] -> logits [T, V], without a cache."""
    return model(ids[None], use_cache=False).logits[0]
