"""Reading a Llama model out of a GGUF file, llama.cpp's format: settings, tensors and tokenizer.

Two things differ from Hugging Face's layout. Weights are quantised in blocks, which `gguf.quants.dequantize` undoes.
And llama.cpp rotates neighbouring rows of a query or key head where everyone else rotates its two halves, so the rows
of those projections are stored in another order, which `_unpermute` undoes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec_ref.errors import CheckpointError
from specdec_ref.tokenizer import Tokenizer

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DIGITS_APART = {"smollm": True, "gpt-2": False}
"""GGUF names a tokenizer's splitting rule without spelling it out. "smollm" is every digit by itself, then GPT-2's
pattern, as in SmolLM2's own tokenizer.json (transformers 5.24, reading GGUF, leaves the digits out: `a  1` differs)."""
_CONTROL = 3  # token_type of tokens that stand for no text


class GGUFFile:
    """A parsed GGUF file. Parsing takes seconds: the reader walks the vocabulary one string at a time.

    Raises:
        CheckpointError: the file is truncated or damaged, or holds no Llama model with a byte-level BPE tokenizer.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        import gguf  # needed once per machine, and slow to import

        try:
            self._reader = gguf.GGUFReader(path)
        except Exception as error:  # the reader meets damage as index, value, key and unicode errors
            detail = " ".join(str(error).split())
            raise CheckpointError(
                f"cannot be read as GGUF: {detail}", where=str(path), fix="take a sound copy"
            ) from error
        self._dequantize: Callable[..., np.ndarray] = gguf.quants.dequantize
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise CheckpointError(
                f"unsupported GGUF architecture {architecture!r}", where=str(path), fix="supported: llama"
            )
        if any(tensor.name.startswith("rope_") for tensor in self._reader.tensors):
            raise CheckpointError("rotary scaling inside a GGUF file is not supported", where=str(path))

    def config(self) -> dict[str, Any]:
        """The settings under the names of Hugging Face's `config.json`."""
        heads = self._field("llama.attention.head_count")
        hidden = self._field("llama.embedding_length")
        tokens = self._field("tokenizer.ggml.tokens")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(tokens),
            "hidden_size": hidden,
            "intermediate_size": self._field("llama.feed_forward_length"),
            "num_hidden_layers": self._field("llama.block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._field("llama.attention.head_count_kv", heads),
            "head_dim": self._field("llama.attention.key_length", hidden // heads),
            "hidden_act": "silu",
            "max_position_embeddings": self._field("llama.context_length"),
            "rms_norm_eps": _shortest(self._field("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self._field("llama.rope.freq_base", 10_000.0)),
            "rope_scaling": None,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in self._reader.tensors),
            "bos_token_id": self._field("tokenizer.ggml.bos_token_id", None),
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id", None),
            "pad_token_id": self._field("tokenizer.ggml.padding_token_id", None),
        }

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor as (Hugging Face name, float32 values), one at a time."""
        heads = self._field("llama.attention.head_count")
        groups = self._field("llama.attention.head_count_kv", heads)
        for tensor in self._reader.tensors:
            name = self._hf_name(tensor.name)
            values = np.array(self._dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            if name.endswith("q_proj.weight"):
                values = _unpermute(values, heads)
            elif name.endswith("k_proj.weight"):
                values = _unpermute(values, groups)
            yield name, torch.from_numpy(np.ascontiguousarray(values))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer and chat template that the file carries.

        Raises:
            CheckpointError: it is of a kind whose splitting rules are not known here.
        """
        kind, split = self._field("tokenizer.ggml.model"), self._field("tokenizer.ggml.pre", "default")
        if kind != "gpt2" or split not in _DIGITS_APART:
            raise CheckpointError(f"unsupported GGUF tokenizer {kind!r}/{split!r}", where=str(self.path))
        tokens: list[str] = self._field("tokenizer.ggml.tokens")
        kinds: list[int] = self._field("tokenizer.ggml.token_type")
        roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {role: self._field(f"tokenizer.ggml.{key}_token_id", None) for role, key in roles.items()}
        left_right = (merge.split(" ", 1) for merge in self._field("tokenizer.ggml.merges"))
        return Tokenizer.from_bpe(
            tokens,
            [(left, right) for left, right in left_right],
            [id for id, kind in enumerate(kinds) if kind == _CONTROL],
            digits_apart=_DIGITS_APART[split],
            named={role: tokens[id] for role, id in ids.items() if id is not None},
            chat_template=self._field("tokenizer.chat_template", None),
            where=str(self.path),
        )

    def _hf_name(self, name: str) -> str:
        if name in _NAMES:
            return _NAMES[name]
        parts = name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
            return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
        raise CheckpointError(f"tensor {name!r} is not part of a Llama model", where=str(self.path))

    def _field(self, key: str, *default: Any) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            if default:
                return default[0]
            raise CheckpointError(f"{key} is missing", where=str(self.path), fix="take a sound copy")
        return field.contents()


def gguf_name(name: str) -> str:
    """The name in a GGUF file of a tensor with that Hugging Face name."""
    whole = {theirs: ours for ours, theirs in _NAMES.items()}
    if name in whole:
        return whole[name]
    number, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, kind = rest.rpartition(".")
    inner = {theirs: ours for ours, theirs in _LAYER_NAMES.items()}
    if part not in inner:
        raise CheckpointError(f"tensor {name!r} has no place in a GGUF Llama model")
    return f"blk.{number}.{inner[part]}.{kind}"


def splitting_of(tokenizer_json: Mapping[str, Any], *, where: str) -> str:
    """GGUF's name for the splitting rule of a byte-level BPE tokenizer.

    Args:
        tokenizer_json: what `tokenizer.json` holds.
        where: the tokenizer, for the error message.

    Raises:
        CheckpointError: GGUF has no name for these rules that is known here.
    """
    split = tokenizer_json.get("pre_tokenizer") or {}
    steps = split.get("pretokenizers", [split])
    kinds = [step.get("type") for step in steps]
    bytes_last = (
        kinds[-1:] == ["ByteLevel"] and steps[-1].get("use_regex") and not steps[-1].get("add_prefix_space")
    )
    digits = kinds[:-1] == ["Digits"] and steps[0].get("individual_digits") is True
    plain = tokenizer_json.get("normalizer") is None and tokenizer_json["model"].get("type") == "BPE"
    if not (plain and bytes_last and (digits or len(steps) == 1)):
        raise CheckpointError(
            "the tokenizer's splitting rules have no known name in GGUF",
            where=where,
            fix="use llama.cpp's own converter on the original checkpoint",
        )
    return next(name for name, apart in _DIGITS_APART.items() if apart == digits)


def _unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """[heads * E, D] with rotated pairs side by side -> a head's first halves before its second halves."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _shortest(value: float) -> float:
    """A float32 setting as the shortest decimal that gives it back: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))
