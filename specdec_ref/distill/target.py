"""The target to imitate, as a `Decoder`, and its pieces of text; a random stand-in for smoke runs."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from specdec_ref.distill.texts import Texts, encode_texts, prompts_folder, random_texts, read_prompts
from specdec_ref.errors import CheckpointError
from specdec_ref.model import Decoder, ModelConfig

RANDOM = ModelConfig(
    vocab_size=256, hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1, head_dim=16,
    intermediate_size=96, max_position_embeddings=1024, rope_theta=1e5, tie_word_embeddings=True,
)  # fmt: skip
"""A tiny target with sharp distributions, so that a draft has something to learn within seconds."""


def load_target(where: str) -> Decoder:
    """Return the target in float32 on the CPU.

    Args:
        where: "random", a `.gguf` file, or anything the kit's loader takes (a name, a folder, a hub id).
    """
    if where == "random":
        return random_decoder(RANDOM, seed=0)
    if where.endswith(".gguf"):
        return _from_gguf(Path(where))
    from specdec_ref import checkpoints

    return checkpoints.load(where).model


def target_texts(where: str, prompts: Path | None = None) -> Texts:
    """Encode what the stages need with the target's own tokenizer (`specdec_ref.tokenizer`).

    Args:
        where: as in `load_target`.
        prompts: evaluation prompts; default the kit's own.
    """
    if where == "random":
        return random_texts(RANDOM.vocab_size, seed=0)
    from specdec_ref import checkpoints

    loaded = checkpoints.load(where)
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        raise CheckpointError(
            "a target needs its tokenizer", where=where, fix="name a folder that holds tokenizer.json"
        )
    return encode_texts(
        lambda text: tokenizer.encode(text, parse_special=True),
        lambda text: tokenizer.chat([{"role": "user", "content": text}]),
        read_prompts(prompts or prompts_folder()),
        tokenizer.fingerprint,
    )


def random_decoder(config: ModelConfig, seed: int, scale: float = 3.0) -> Decoder:
    """A decoder with random weights whose output distributions are far from flat (`scale` widens the logits)."""
    model = Decoder(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                std = scale / math.sqrt(parameter.shape[1])
                std = std if name in ("embed", "head.weight") else 0.7 * std / scale
                parameter.normal_(0, std, generator=generator)
        if model.head is not None and config.tie_word_embeddings:
            model.head.weight.copy_(model.embed[model.head_ids])
    return model.eval()


def _from_gguf(path: Path) -> Decoder:
    # Only what a Llama-family file needs, so that a GPU node can read one with the `gguf` package alone.
    try:
        import gguf
    except ImportError:
        raise CheckpointError(
            "the package `gguf` is not installed", where=str(path), fix="pip install gguf"
        ) from None
    try:
        reader = gguf.GGUFReader(str(path))
    except Exception as error:  # a missing file is an OSError, a damaged one almost anything
        raise CheckpointError(
            f"cannot be read as GGUF: {' '.join(str(error).split())}", where=str(path)
        ) from error

    def value(key: str) -> float:
        return reader.fields[f"llama.{key}"].contents()

    tensors = {t.name: torch.tensor(gguf.quants.dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    heads, groups = int(value("attention.head_count")), int(value("attention.head_count_kv"))
    width = int(value("embedding_length"))
    config = ModelConfig(
        vocab_size=tensors["token_embd.weight"].shape[0],
        hidden_size=width,
        num_hidden_layers=int(value("block_count")),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=width // heads,
        intermediate_size=int(value("feed_forward_length")),
        max_position_embeddings=int(value("context_length")),
        rope_theta=float(value("rope.freq_base")),
        rms_norm_eps=float(value("attention.layer_norm_rms_epsilon")),
        tie_word_embeddings="output.weight" not in tensors,
    )
    named = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    if not config.tie_word_embeddings:
        named["lm_head.weight"] = tensors["output.weight"]
    names = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    for i in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            named[f"model.layers.{i}.{ours}.weight"] = tensors[f"blk.{i}.{theirs}.weight"]
        for ours, theirs, count in (("q_proj", "attn_q", heads), ("k_proj", "attn_k", groups)):
            named[f"model.layers.{i}.self_attn.{ours}.weight"] = _half_rotated(
                tensors[f"blk.{i}.{theirs}.weight"], count
            )
    return Decoder(config).load_weights(named, where=str(path)).eval()


def _half_rotated(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp interleaves the rotated pairs of q and k; put the rows back into two halves a head."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)
