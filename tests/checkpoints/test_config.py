"""config.json: every family and spelling is understood, everything that would change the arithmetic is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specdec_ref.checkpoints.config import parse_config, token_ids
from specdec_ref.errors import CheckpointError
from specdec_ref.model import RopeScaling
from tests.helpers import hf

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}


def test_a_plain_llama() -> None:
    c = parse_config(LLAMA)
    assert (c.head_dim, c.num_key_value_heads, c.tie_word_embeddings, c.qkv_bias, c.qk_norm) == (
        8,
        2,
        False,
        False,
        False,
    )
    assert (c.rope_theta, c.rope_scaling, c.head_rows) == (10_000.0, None, None)


def test_defaults_of_each_family_are_transformers() -> None:
    """Keys that older files leave out take the values that transformers' own classes give them."""
    for family, (config_class, _) in hf.FAMILIES.items():
        sizes = {
            key: LLAMA[key]
            for key in ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
        }
        theirs = config_class(**sizes, num_hidden_layers=2, num_key_value_heads=2)
        ours = parse_config({**sizes, "model_type": family, "num_hidden_layers": 2, "num_key_value_heads": 2})
        assert ours.head_dim == (
            getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
        )
        assert ours.rms_norm_eps == theirs.rms_norm_eps
        assert ours.max_position_embeddings == theirs.max_position_embeddings
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings


def test_missing_key_heads_mean_one_for_each_query_head() -> None:
    assert parse_config(config(num_key_value_heads=...)).num_key_value_heads == 4
    assert parse_config(config(num_key_value_heads=None)).num_key_value_heads == 4


def test_biases_and_norms_by_family() -> None:
    def flags(**changes: Any) -> tuple[bool, bool, bool, bool]:
        c = parse_config(config(architectures=..., **changes))
        return c.qkv_bias, c.o_bias, c.mlp_bias, c.qk_norm

    assert flags(model_type="qwen2") == (True, False, False, False)
    assert flags(model_type="qwen3") == (False, False, False, True)
    assert flags(model_type="qwen3", attention_bias=True) == (True, True, False, True)
    assert flags(attention_bias=True) == (True, True, False, False)
    assert flags(mlp_bias=True) == (False, False, True, False)


@pytest.mark.parametrize(
    ("changes", "theta", "scaling"),
    [
        ({"rope_theta": ...}, 10_000.0, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10_000.0, RopeScaling("linear", 2.0)),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            10_000.0,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
        ),
        ({"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}, 7.0, None),
        (
            {"rope_theta": ..., "rope_parameters": {"rope_type": "llama3", "rope_theta": 7.0, **LLAMA3}},
            7.0,
            RopeScaling("llama3", 8.0, 1.0, 4.0, 8192),
        ),
    ],
)
def test_rotary_settings_old_and_new(
    changes: dict[str, Any], theta: float, scaling: RopeScaling | None
) -> None:
    c = parse_config(config(**changes))
    assert (c.rope_theta, c.rope_scaling) == (theta, scaling)


def test_sliding_windows_that_are_switched_off_do_not_matter() -> None:
    qwen = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096}
    parse_config(config(**qwen, use_sliding_window=False))
    parse_config(config(**qwen, use_sliding_window=True, max_window_layers=3))
    parse_config(config(**qwen, layer_types=["full_attention"] * 3))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"model_type": "gpt2"},
            "unsupported architecture 'gpt2' (supported model types: llama, qwen2, qwen3)",
        ),
        ({"model_type": "qwen3_moe"}, "unsupported architecture 'qwen3_moe'"),
        ({"model_type": ...}, "unsupported architecture None"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "LlamaForSequenceClassification is not a language model",
        ),
        ({"hidden_act": "gelu"}, "unsupported activation 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "the weights are quantised (gptq)"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            "sliding-window",
        ),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
            "sliding-window attention",
        ),
        ({"layer_types": ["linear_attention"]}, "unsupported layer type 'linear_attention'"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0}},
            "unsupported rotary scaling 'yarn' (supported: default, linear",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "unsupported rotary scaling 'dynamic'",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rotary settings per kind of layer"),
        ({"partial_rotary_factor": 0.5}, "partial or interleaved rotary"),
        ({"rope_interleaved": True}, "partial or interleaved rotary"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number, found None"),
        ({"rope_theta": "big"}, "rope_theta must be a positive number, found 'big'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a positive number"),
        ({"vocab_size": ...}, "vocab_size must be a positive whole number, found None"),
        ({"hidden_size": "32"}, "hidden_size must be a positive whole number, found '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive whole number, found 0"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key/value heads evenly"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"specdec": {"head_rows": 101}}, "specdec.head_rows must be between 1 and 100, found 101"),
    ],
)
def test_what_is_not_supported_is_one_clear_error(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError) as error:
        parse_config(config(**changes), where="here/config.json")
    assert str(error.value).startswith(f"here/config.json: {complaint}")
    assert "\n" not in str(error.value)


def test_every_config_that_transformers_writes_is_understood(tmp_path: Path) -> None:
    for family, (config_class, _) in hf.FAMILIES.items():
        config_class(**hf.SHAPE).save_pretrained(tmp_path)
        raw = json.loads((tmp_path / "config.json").read_text())
        assert parse_config(raw).hidden_size == 32, family


def test_token_ids() -> None:
    assert token_ids(None, where="x") == ()
    assert token_ids(7, where="x") == (7,)
    assert token_ids([7, 3, 7], where="x") == (7, 3)
    for wrong in ("7", [True], -1, [1.5]):
        with pytest.raises(CheckpointError, match="expected token ids"):
            token_ids(wrong, where="x")
