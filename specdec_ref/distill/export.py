"""Stage 4: a trained draft as a model folder that `specdec_ref.checkpoints` loads, with its card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_ref.distill.checkpoint import load_checkpoint
from specdec_ref.distill.config import DraftConfig, draft_config
from specdec_ref.distill.texts import Texts
from specdec_ref.errors import CheckpointError
from specdec_ref.feature_draft import MODEL_TYPE, FeatureConfig, FeatureDraft
from specdec_ref.files import atomic_file
from specdec_ref.model import Decoder, ModelConfig

LARGEST_FILE = 25_000_000
"""Bytes a committed model file may have."""


def draft_tensors(weights: Mapping[str, Tensor], config: ModelConfig, order: Tensor) -> dict[str, Tensor]:
    """Training weights -> the tensors of the file: Hugging Face's names, bfloat16, embedding int8 with row scales.

    Args:
        weights: by their names in `Decoder`.
        config: of the draft.
        order: [V] token ids, most frequent first; the first `head_rows` are the head's, stored ascending.
    """
    if isinstance(config, FeatureConfig):
        return _feature_tensors(weights, config, order)
    c, e = config, config.head_dim
    q, kv = c.num_attention_heads * e, c.num_key_value_heads * e
    embed = weights["embed"].float()
    scale = (embed.abs().amax(1, keepdim=True) / 127).clamp(min=1e-8).half()
    int8 = (embed / scale.float()).round().clamp(-127, 127).to(torch.int8)
    tensors = {
        "model.embed_tokens.weight": int8,
        "model.embed_tokens.weight_scale": scale,
        "model.norm.weight": weights["norm.weight"].bfloat16(),
        "specdec.head_ids": order[: c.head_rows].sort().values.int(),
    }
    for i in range(c.num_hidden_layers):
        ours, theirs = f"layers.{i}.", f"model.layers.{i}."
        parts = dict(zip("qkv", weights[ours + "qkv.weight"].split([q, kv, kv]), strict=True))
        gate, up = weights[ours + "gate_up.weight"].chunk(2)
        named = {
            **{f"self_attn.{n}_proj": part for n, part in parts.items()},
            "self_attn.o_proj": weights[ours + "out.weight"],
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": weights[ours + "down.weight"],
            "input_layernorm": weights[ours + "attention_norm.weight"],
            "post_attention_layernorm": weights[ours + "mlp_norm.weight"],
        }
        tensors |= {f"{theirs}{name}.weight": tensor.bfloat16() for name, tensor in named.items()}
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def _feature_tensors(
    weights: Mapping[str, Tensor], config: FeatureConfig, order: Tensor
) -> dict[str, Tensor]:
    ids, rows = order[: config.head_rows].sort()
    tensors = {name: tensor.bfloat16() for name, tensor in weights.items()}
    tensors["head.weight"] = tensors["head.weight"][rows.to(weights["head.weight"].device)]
    tensors["specdec.head_ids"] = ids.int()
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def draft_from(tensors: Mapping[str, Tensor], config: ModelConfig) -> Decoder | FeatureDraft:
    """The float32 model that loading the file gives."""
    if isinstance(config, FeatureConfig):
        return FeatureDraft(config).load_weights(tensors, where="draft").eval()
    named = dict(tensors)
    scale = named.pop("model.embed_tokens.weight_scale")
    named["model.embed_tokens.weight"] = named["model.embed_tokens.weight"].float() * scale.float()
    return Decoder(config).load_weights(named, where="draft").eval()


def trained_drafts(out: Path) -> dict[str, tuple[DraftConfig, ModelConfig, dict[str, Tensor]]]:
    """Name -> (shape, model configuration, tensors of the file) of every draft in a run's checkpoint (averaged weights).

    Raises:
        CheckpointError: the run has no checkpoint yet.
    """
    path = out / "checkpoint.pt"
    saved = load_checkpoint(path)
    if not saved:
        raise CheckpointError("there is no checkpoint", where=str(path), fix="run the `train` stage first")
    found = {}
    for raw, weights in zip(json.loads(saved["config"])["drafts"], saved["averages"], strict=True):
        draft = draft_config(raw)
        target_width = len(weights["embed_norm.weight"]) if draft.taps else 0
        config = draft.model(len(saved["order"]), target_width)
        found[draft.name] = (draft, config, draft_tensors(weights, config, saved["order"]))
    return found


def export(out: Path, to: Path, *, split: int = 0, prefix: str = "draft") -> list[Path]:
    """Write `to/<prefix>-<width>x<layers>/` for every draft of the run in `out`.

    Args:
        out: the run's folder.
        to: where the model folders go.
        split: cut weights into parts of at most so many MiB, for transport (`join` puts them together); 0: do not.
        prefix: of the folders' names; feature-level drafts are called `feature-…`.

    Returns:
        the folders.
    """
    from safetensors.torch import save

    texts = Texts.load(out / "texts.json")
    reports = {name: _read(out / name) for name in ("train.json", "eval.json", "data/manifest.json")}
    folders = []
    for name, (draft, config, tensors) in trained_drafts(out).items():
        folder = to / f"{'feature' if draft.taps else prefix}-{draft.width}x{draft.layers}"
        content = save(tensors)
        if len(content) > LARGEST_FILE:
            raise CheckpointError(f"{len(content):,} bytes are more than {LARGEST_FILE:,}", where=str(folder))
        files = {"model.safetensors": content}
        if split and len(content) > split << 20:
            step = split << 20
            files = {
                f"model.safetensors.part{i}": content[i * step : (i + 1) * step]
                for i in range(-(-len(content) // step))
            }
        files["config.json"] = _json(_config(draft, config, texts, reports["train.json"]))
        files["README.md"] = _card(folder.name, name, draft, config, len(content), reports).encode()
        for file, data in files.items():
            with atomic_file(folder / file) as part:
                part.write_bytes(data)
        folders.append(folder)
    return folders


def join(folder: Path) -> Path:
    """Put `model.safetensors` together from its parts, check that it can be read, and remove them."""
    from safetensors.torch import load

    parts = sorted(folder.glob("model.safetensors.part*"), key=lambda p: int(p.suffix.removeprefix(".part")))
    if not parts:
        raise CheckpointError("there are no parts", where=str(folder))
    content = b"".join(part.read_bytes() for part in parts)
    try:
        load(content)
    except Exception as error:
        raise CheckpointError(f"the parts do not fit together: {error}", where=str(folder)) from error
    path = folder / "model.safetensors"
    with atomic_file(path) as whole:
        whole.write_bytes(content)
    for part in parts:
        part.unlink()
    return path


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _config(
    draft: DraftConfig, config: ModelConfig, texts: Texts, trained: Mapping[str, Any]
) -> dict[str, Any]:
    run = dict(trained.get("config") or {})
    row = int(run.get("data", {}).get("tokens", 0))
    chains = [int(chain) for chain, _ in run.get("train", {}).get("chains", [])]
    kind: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    special: dict[str, Any] = {
        "role": "draft",
        "embedding": "int8 rows times model.embed_tokens.weight_scale",
    }
    if isinstance(config, FeatureConfig):
        kind = {"model_type": MODEL_TYPE}
        special = {"role": "feature draft", "taps": list(config.taps), "target_width": config.target_width}
    return {
        **kind,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": 1,
        "eos_token_id": texts.end_of_turn,
        "pad_token_id": texts.end_of_turn,
        "torch_dtype": "bfloat16",
        "specdec": {
            **special,
            "name": draft.name,
            "target": run.get("target"),
            "tokenizer_sha256": texts.tokenizer_sha256 or None,
            "head_rows": config.head_rows,
            "head_ids": "specdec.head_ids",
            "trained_context": row * max(chains, default=1),
            "seed": run.get("seed"),
        },
    }


def _card(
    folder: str,
    name: str,
    draft: DraftConfig,
    config: ModelConfig,
    size: int,
    reports: Mapping[str, Mapping[str, Any]],
) -> str:
    from specdec_ref.distill.card import model_card

    return model_card(
        folder,
        name,
        draft,
        config,
        size,
        reports["train.json"],
        reports["eval.json"],
        reports["data/manifest.json"],
    )
