"""Writing a model as a GGUF file, llama.cpp's format: the inverse of `checkpoints.gguf_file`, tokenizer included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from specdec_ref.checkpoints import LoadedModel
from specdec_ref.checkpoints.gguf_file import gguf_name, splitting_of
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.export.full_head import with_full_head
from specdec_ref.export.hf import hf_state_dict
from specdec_ref.files import atomic_file
from specdec_ref.model import Decoder, ModelConfig
from specdec_ref.tokenizer import Tokenizer

Precision = Literal["fp32", "fp16"]

BLOCK = 32
"""Values that llama.cpp quantises together: a width that is no multiple of it could not be quantised later."""


def write_gguf(
    path: Path, loaded: LoadedModel, tokenizer: Tokenizer, *, precision: Precision = "fp32"
) -> Path:
    """Write a plain Llama model with its tokenizer and chat template.

    A reduced head is written as a whole one that never proposes the missing tokens (`export.full_head`): llama.cpp then
    computes the same distribution as this kit, at the cost of a head with one row per token.

    Args:
        path: the file to write; it appears when it is complete.
        loaded: the model, in float32.
        tokenizer: the one that its ids belong to.
        precision: of the matrices. Norms stay in float32, as llama.cpp keeps them.

    Returns:
        `path`.

    Raises:
        CheckpointError: the model or the tokenizer cannot be expressed in this form, or the disk is full.
        UsageError: an unknown precision.
    """
    import gguf

    if precision not in ("fp32", "fp16"):
        raise UsageError(f"unknown precision {precision!r}", fix="use fp32 or fp16")
    model = with_full_head(loaded.model, multiple=BLOCK)
    _refuse_unsupported(model.config, loaded.name)
    size = sum(p.numel() for p in model.parameters()) * (4 if precision == "fp32" else 2)
    with atomic_file(path, needs=size) as part:
        writer = gguf.GGUFWriter(part, "llama")
        _write_settings(writer, model.config, loaded.name, precision)
        _write_tokenizer(writer, tokenizer, loaded, model.config.vocab_size)
        for name, values in _tensors(model, precision):
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def _refuse_unsupported(c: ModelConfig, name: str) -> None:
    if c.qkv_bias or c.o_bias or c.mlp_bias or c.qk_norm or c.rope_scaling:
        raise CheckpointError(
            "only plain Llama models (no biases, query/key norms or rotary scaling) are written as GGUF",
            where=name,
            fix="use llama.cpp's own converter on the original checkpoint",
        )


def _write_settings(writer: Any, c: ModelConfig, name: str, precision: Precision) -> None:
    import gguf

    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if precision == "fp32" else gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_vocab_size(c.vocab_size)


def _write_tokenizer(writer: Any, tokenizer: Tokenizer, loaded: LoadedModel, rows: int) -> None:
    import gguf

    tokens = [f"[PAD{id}]" for id in range(rows)]  # rows that no token has, if any
    kinds = [int(gguf.TokenType.UNUSED)] * rows
    for id, token in tokenizer.content["vocabulary"]:
        tokens[id], kinds[id] = token, int(gguf.TokenType.NORMAL)
    for id, _ in tokenizer.content["specials"]:
        kinds[id] = int(gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splitting_of(tokenizer.to_json(), where=tokenizer.where))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{left} {right}" for left, right in tokenizer.content["merges"]])
    ids = {token: id for id, token in tokenizer.content["specials"]}
    eos = loaded.eos_ids or (() if tokenizer.eos_id is None else (tokenizer.eos_id,))
    bos = loaded.bos_id if loaded.bos_id is not None else tokenizer.bos_id
    for add, id in (
        (writer.add_bos_token_id, bos),
        (writer.add_eos_token_id, eos[0] if eos else None),
        (writer.add_eot_token_id, eos[1] if len(eos) > 1 else None),
        (writer.add_unk_token_id, ids.get(tokenizer.named.get("unk_token", ""))),
        (writer.add_pad_token_id, ids.get(tokenizer.named.get("pad_token", ""))),
    ):
        if id is not None:
            add(id)
    # The chat template writes every special token itself.
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)


def _tensors(model: Decoder, precision: Precision) -> Iterator[tuple[str, np.ndarray]]:
    c = model.config
    heads = {"q_proj.weight": c.num_attention_heads, "k_proj.weight": c.num_key_value_heads}
    for name, tensor in hf_state_dict(model).items():
        values = tensor.detach().float()
        count = next((n for suffix, n in heads.items() if name.endswith(suffix)), None)
        if (
            count is not None
        ):  # rotated pairs side by side, where everyone else has the halves of a head one after the other
            values = values.unflatten(0, (count, 2, c.head_dim // 2)).transpose(1, 2).flatten(0, 2)
        if precision == "fp16" and values.dim() == 2:
            values = values.to(torch.float16)
            if not bool(torch.isfinite(values).all()):
                raise CheckpointError(f"tensor {name!r} does not fit float16", fix="use --precision fp32")
        yield gguf_name(name), values.contiguous().numpy()
