"""The nano pair as folders: weights, config, tokenizer and model card."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from specdec_ref.decoding import speculative
from specdec_ref.drafters import ModelDrafter
from specdec_ref.errors import SpecdecError
from specdec_ref.files import atomic_folder
from specdec_ref.golden.content import tensors_sha256
from specdec_ref.golden.corpus import conversations
from specdec_ref.golden.nano import DRAFT, HEAD_ROWS, TARGET, NanoPair, one_thread, tensors, train_pair
from specdec_ref.golden.nano_tokenizer import write_tokenizer
from specdec_ref.model import Decoder, ModelConfig
from specdec_ref.runner import Runner
from specdec_ref.sampling import Sampling
from specdec_ref.tokenizer import Tokenizer
from specdec_ref.trace import Telemetry

_EVALUATION_SEED, _EVALUATION_SIZE = 99, 40


def make_pair(models: Path, *, check: bool = False) -> dict[str, str]:
    """Train the pair and write both folders into `models`, or compare with what is there.

    Returns:
        SHA-256 of the weights by folder name.

    Raises:
        SpecdecError: with `check`, when the weights there are others.
    """
    pair = train_pair()
    hashes = {
        name: tensors_sha256(stored(model)) for name, model in ((TARGET, pair.target), (DRAFT, pair.draft))
    }
    if check:
        for name, fresh in hashes.items():
            if tensors_sha256(safetensors.torch.load_file(models / name / "model.safetensors")) != fresh:
                raise SpecdecError(
                    "training gives other weights than the file holds", where=str(models / name)
                )
        return hashes
    with one_thread():
        figures = {temperature: evaluate(pair, temperature) for temperature in (0.0, 0.7, 1.0)}
    for name, model in ((TARGET, pair.target), (DRAFT, pair.draft)):
        with atomic_folder(models / name) as folder:
            weights = folder / "model.safetensors"
            safetensors.torch.save_file(stored(model), weights, metadata={"format": "pt"})
            weights.chmod(0o644)  # the library makes it readable for its owner alone
            config = json.dumps(config_json(model.config, pair.tokenizer), indent=2)
            (folder / "config.json").write_text(config + "\n", encoding="utf-8")
            write_tokenizer(pair.tokenizer, folder)
            (folder / "README.md").write_text(card(name, model, figures), encoding="utf-8")
    return hashes


def stored(model: Decoder) -> dict[str, Tensor]:
    """The tensors as they are saved: bfloat16 weights, 32-bit ids."""
    return {
        name: tensor.bfloat16().contiguous() if tensor.is_floating_point() else tensor.int()
        for name, tensor in tensors(model).items()
    }


def config_json(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Hugging Face's `config.json`; a draft's has this kit's section `specdec` as well."""
    content: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
    }
    if config.head_rows is not None:
        content["specdec"] = {
            "role": "draft",
            "target": TARGET,
            "tokenizer_sha256": tokenizer.fingerprint,
            "head_rows": config.head_rows,
        }
    return content


@torch.inference_mode()
def evaluate(pair: NanoPair, temperature: float) -> Telemetry:
    """Decode conversations at K = 4 and add up what happened."""
    target, draft = (Decoder(m.config).load_weights(tensors(m)) for m in (pair.target, pair.draft))
    return acceptance(target, draft, pair.tokenizer, temperature)


def acceptance(
    target: Decoder, draft: Decoder, tokenizer: Tokenizer, temperature: float, count: int = _EVALUATION_SIZE
) -> Telemetry:
    """Telemetry of `count` answers of at most 48 tokens to prompts made with a seed of their own."""
    total, runner = Telemetry(), Runner(target)
    drafter = ModelDrafter(Runner(draft), runner.vocab_size)
    for seed, turns in enumerate(conversations(_EVALUATION_SEED, count)):
        prompt = tokenizer.chat([{"role": "user", "content": turns[0][0]}])
        done = speculative(
            runner,
            drafter,
            prompt,
            lookahead=4,
            sampling=Sampling(temperature),
            max_new_tokens=48,
            eos_ids=[tokenizer.special_tokens["<|im_end|>"]],
            seed=seed,
        )
        total += done.telemetry
    return total


def mean_alpha(telemetry: Telemetry) -> float:
    """Accepted share of all judged tokens."""
    return sum(telemetry.per_position_accepted) / max(1, sum(telemetry.per_position_judged))


def card(name: str, model: Decoder, figures: dict[float, Telemetry]) -> str:
    """The model card, with the acceptance measured just now."""
    c = model.config
    parameters = sum(tensor.numel() for tensor in tensors(model).values() if tensor.is_floating_point())
    rows = "\n".join(_figure(temperature, telemetry) for temperature, telemetry in figures.items())
    role = "target" if name == TARGET else "draft"
    head = "" if c.head_rows is None else _HEAD_NOTE.format(rows=HEAD_ROWS)
    return _CARD.format(name=name, role=role, parameters=parameters, c=c, head=head, figures=rows)


def _figure(temperature: float, telemetry: Telemetry) -> str:
    slots: Iterable[str] = (f"{alpha:.2f}" for alpha in telemetry.alpha)
    return f"| {temperature} | {mean_alpha(telemetry):.2f} | {' / '.join(slots)} | {telemetry.tau:.2f} |"


_HEAD_NOTE = """
Its output head is reduced: it holds the {rows} most frequent tokens, row r being token `specdec.head_ids[r]`
(ascending). The draft can propose no other token; q is zero there.
"""

_CARD = """---
license: apache-2.0
language: en
library_name: specdec_ref
tags: [speculative-decoding, test-fixture]
---

# {name}

The {role} of the nano pair: a Llama-family model trained in less than a minute on a CPU, for tests and for
trying out a runtime. **It knows nothing and its answers are mostly wrong.** It is small, it has every feature
that the decoding code must handle, and target and draft agree often but not always.

| | |
|---|---|
| parameters | {parameters:,} (bfloat16; every value is exact in float32) |
| layers, width, MLP width | {c.num_hidden_layers}, {c.hidden_size}, {c.intermediate_size} |
| query heads, key/value heads, head width | {c.num_attention_heads}, {c.num_key_value_heads}, {c.head_dim} |
| vocabulary | {c.vocab_size} byte-level BPE tokens, each digit apart; tied embeddings |
| positions | {c.max_position_embeddings} (trained on 96) |
{head}
## Acceptance at K = 4

Measured on 40 prompts from the same templates as the training text (short ones occur in it too). alpha: accepted
share of the judged tokens, over all and by slot; tau: tokens per target pass.

| temperature | alpha | by slot | tau |
|---|---|---|---|
{figures}

## How it was made

`python -m specdec_ref.golden nano` makes both models anew: conversations from templates written for this kit
(`specdec_ref/golden/corpus.py`), a tokenizer learnt from them, the target trained on them, the draft trained on
the target's probabilities. Training runs in float64 with fixed seeds and is rounded to bfloat16 every 25 steps, so
that the same weights come out everywhere; `assets/golden/manifest.json` holds their hashes. No foreign text,
weights or data are in it.
"""
