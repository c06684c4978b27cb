"""A `Decoder` as a Hugging Face model: the other half of every parity check and peer benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_ref.checkpoints import LoadedModel
from specdec_ref.errors import CheckpointError
from specdec_ref.export.full_head import with_full_head
from specdec_ref.files import atomic_folder
from specdec_ref.model import Decoder, Layer
from specdec_ref.quiet import silence_libraries
from specdec_ref.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def hf_state_dict(model: Decoder) -> dict[str, Tensor]:
    """The model's weights under Hugging Face's Llama names, fused matrices split again (views where possible).

    A reduced head is left out: Hugging Face's models score the whole vocabulary, so a tied draft gets its whole embedding.
    """
    tensors: dict[str, Tensor] = {
        "model.embed_tokens.weight": model.embed,
        "model.norm.weight": model.norm.weight,
    }
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, Layer)
        tensors |= {f"model.layers.{index}.{name}": tensor for name, tensor in _layer_tensors(layer).items()}
    if model.head is not None and not model.config.tie_word_embeddings:
        tensors["lm_head.weight"] = model.head.weight
    return tensors


def _layer_tensors(layer: Layer) -> dict[str, Tensor]:
    c = layer.config
    rows = [c.num_attention_heads * c.head_dim] + [c.num_key_value_heads * c.head_dim] * 2
    found: dict[str, Tensor] = {
        "input_layernorm.weight": layer.attention_norm.weight,
        "post_attention_layernorm.weight": layer.mlp_norm.weight,
        "self_attn.o_proj.weight": layer.out.weight,
        "mlp.down_proj.weight": layer.down.weight,
    }
    for name, part in zip("qkv", layer.qkv.weight.split(rows), strict=True):
        found[f"self_attn.{name}_proj.weight"] = part
    for name, part in zip(("gate", "up"), layer.gate_up.weight.chunk(2), strict=True):
        found[f"mlp.{name}_proj.weight"] = part
    return found


def to_transformers(model: Decoder) -> LlamaForCausalLM:
    """Build a `LlamaForCausalLM` that shares this model's weights.

    Raises:
        CheckpointError: the model has biases, qk-norm or rope scaling, which plain Llama has not, or an uneven width.
    """
    silence_libraries()
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    c = model.config
    if c.qkv_bias or c.o_bias or c.mlp_bias or c.qk_norm or c.rope_scaling:
        raise CheckpointError(
            "only plain Llama models can be handed to transformers", fix="use the original checkpoint"
        )
    if c.hidden_size % c.num_attention_heads:
        raise CheckpointError(
            f"transformers' Llama wants a width that is a multiple of the {c.num_attention_heads} heads, "
            f"this model's is {c.hidden_size}"
        )
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_hidden_layers,
        num_attention_heads=c.num_attention_heads,
        num_key_value_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.max_position_embeddings,
        rms_norm_eps=c.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tie_word_embeddings,
    )
    with torch.device("meta"):
        hf = LlamaForCausalLM(config)
    missing, unexpected = hf.load_state_dict(hf_state_dict(model), strict=False, assign=True)
    if unexpected or [name for name in missing if name != "lm_head.weight"]:
        raise CheckpointError(f"transformers expects other tensors: {missing or unexpected}")
    hf.tie_weights()
    # Rotary frequencies are computed at construction, which did nothing on the meta device.
    hf.model.rotary_emb = type(hf.model.rotary_emb)(config)
    hf.generation_config = GenerationConfig(do_sample=False)
    return hf.eval()


def write_transformers(path: Path, loaded: LoadedModel, tokenizer: Tokenizer) -> Path:
    """Write a folder that `AutoModelForCausalLM` and `AutoTokenizer` load, and that serves as `assistant_model=`.

    A reduced head is written as a whole one that never proposes the missing tokens (`export.full_head`).

    Args:
        path: the folder; it appears when it is complete. What is there now is replaced.
        loaded: the model.
        tokenizer: the one that its ids belong to.

    Returns:
        `path`.

    Raises:
        CheckpointError: as in `to_transformers`; or the disk is full.
    """
    hf = to_transformers(with_full_head(loaded.model, multiple=loaded.model.config.num_attention_heads))
    eos = loaded.eos_ids[0] if len(loaded.eos_ids) == 1 else list(loaded.eos_ids) or None
    for settings in (hf.config, hf.generation_config):
        settings.bos_token_id, settings.eos_token_id = loaded.bos_id, eos
        settings.pad_token_id = loaded.eos_ids[0] if loaded.eos_ids else None
    needs = sum(p.numel() * p.element_size() for p in hf.parameters())
    with atomic_folder(path, needs=needs) as part:
        hf.save_pretrained(part)
        tokenizer.save(part)
    return path
