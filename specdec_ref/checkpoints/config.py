"""Hugging Face's `config.json` -> `ModelConfig`, or one clear reason why not.

A decoder that ignores a setting it does not know computes something else than the model's authors meant, and nobody
notices. So every setting that would change the arithmetic is either honoured or refused here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdec_ref.errors import CheckpointError
from specdec_ref.model import ModelConfig, RopeScaling

SUPPORTED = ("llama", "qwen2", "qwen3")
"""Values of `model_type` that `specdec_ref.model` computes."""

_ROPE_KINDS = {"default": None, "linear": "linear", "llama3": "llama3"}


def parse_config(raw: Mapping[str, Any], *, where: str = "config.json") -> ModelConfig:
    """Translate a `config.json`, written by any transformers version, of a Llama, Qwen2 or Qwen3 model.

    Args:
        raw: the parsed file. A draft of this kit adds a section `specdec` (`head_rows`: rows of a reduced output head).
        where: what error messages call it.

    Raises:
        CheckpointError: a setting is missing or malformed, or the model needs arithmetic that is not here.
    """
    kind = raw.get("model_type")
    if kind not in SUPPORTED:
        raise CheckpointError(
            f"unsupported architecture {kind!r}",
            where=where,
            fix=f"supported model types: {', '.join(SUPPORTED)}",
        )
    _refuse_unsupported(raw, where)

    def integer(key: str, default: int | None = None) -> int:
        value = raw.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{key} must be a positive whole number, found {value!r}", where=where)
        return value

    hidden, heads = integer("hidden_size"), integer("num_attention_heads")
    groups = integer("num_key_value_heads", heads)
    if heads % groups:
        raise CheckpointError(
            f"{heads} query heads cannot share {groups} key/value heads evenly", where=where
        )
    head_dim = integer("head_dim", 128 if kind == "qwen3" else hidden // heads)
    if head_dim % 2:
        raise CheckpointError(f"head_dim {head_dim} is odd, and rotary embedding turns pairs", where=where)
    theta, scaling = _rope(raw, where)
    bias = bool(raw.get("attention_bias", False))
    vocab_size = integer("vocab_size")
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head_dim,
        intermediate_size=integer("intermediate_size"),
        max_position_embeddings=integer("max_position_embeddings", 2048 if kind == "llama" else 32768),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=_number(raw, "rms_norm_eps", 1e-6, where),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or bias,
        o_bias=kind != "qwen2" and bias,
        mlp_bias=kind == "llama" and bool(raw.get("mlp_bias", False)),
        qk_norm=kind == "qwen3",
        head_rows=_head_rows(raw, vocab_size, where),
    )


def token_ids(value: object, *, where: str) -> tuple[int, ...]:
    """`eos_token_id` and its kin: null, one id, or a list of ids -> a tuple without repetitions."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise CheckpointError(f"expected token ids, found {value!r}", where=where)
    return tuple(dict.fromkeys(ids))


def _refuse_unsupported(raw: Mapping[str, Any], where: str) -> None:
    architectures = raw.get("architectures") or []
    if architectures and not any(str(name).endswith("ForCausalLM") for name in architectures):
        raise CheckpointError(f"{architectures[0]} is not a language model with an output head", where=where)
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(
            f"unsupported activation {activation!r}", where=where, fix="only silu (SwiGLU) is here"
        )
    if raw.get("quantization_config") is not None:
        method = dict(raw["quantization_config"]).get("quant_method", "unknown")
        raise CheckpointError(
            f"the weights are quantised ({method})",
            where=where,
            fix="load the float16, bfloat16 or float32 original",
        )
    layer_types = raw.get("layer_types") or []
    others = [name for name in layer_types if name not in ("full_attention", "sliding_attention")]
    if others:
        raise CheckpointError(f"unsupported layer type {others[0]!r}", where=where)
    slides = raw.get("use_sliding_window", False) and raw.get("sliding_window") is not None
    if layer_types:
        slides = "sliding_attention" in layer_types
    elif slides:
        slides = raw.get("max_window_layers", 28) < raw.get("num_hidden_layers", 32)
    if slides:
        # A cache that forgets its oldest entries cannot be rolled back past that edge.
        raise CheckpointError(
            "sliding-window attention is not supported",
            where=where,
            fix="use a model with full attention in every layer",
        )


def _rope(raw: Mapping[str, Any], where: str) -> tuple[float, RopeScaling | None]:
    # transformers 5 writes everything into rope_parameters; before, theta stood alone and scaling had its own section.
    section: Any = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(section, dict) or any(isinstance(value, dict) for value in section.values()):
        raise CheckpointError("rotary settings per kind of layer are not supported", where=where)
    theta = _number({**raw, **section}, "rope_theta", 10_000.0, where)
    kind = section.get("rope_type", section.get("type", "default"))
    if kind not in _ROPE_KINDS:
        raise CheckpointError(
            f"unsupported rotary scaling {kind!r}", where=where, fix=f"supported: {', '.join(_ROPE_KINDS)}"
        )
    partial = section.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0) or raw.get("rope_interleaved"):
        raise CheckpointError("partial or interleaved rotary embedding is not supported", where=where)
    if _ROPE_KINDS[kind] is None:
        return theta, None
    if kind == "linear":
        return theta, RopeScaling(kind, _number(section, "factor", None, where))
    return theta, RopeScaling(
        kind,
        _number(section, "factor", None, where),
        _number(section, "low_freq_factor", None, where),
        _number(section, "high_freq_factor", None, where),
        int(_number(section, "original_max_position_embeddings", None, where)),
    )


def _head_rows(raw: Mapping[str, Any], vocab_size: int, where: str) -> int | None:
    rows = dict(raw.get("specdec") or {}).get("head_rows")
    if rows is not None and not (isinstance(rows, int) and 1 <= rows <= vocab_size):
        raise CheckpointError(
            f"specdec.head_rows must be between 1 and {vocab_size}, found {rows!r}", where=where
        )
    return rows


def _number(section: Mapping[str, Any], key: str, default: float | None, where: str) -> float:
    value = section.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckpointError(f"{key} must be a positive number, found {value!r}", where=where)
    return float(value)
