"""The model card of a draft, written from the run's own JSON files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specdec_ref.distill.config import CONFIGS, DraftConfig, load_config
from specdec_ref.model import ModelConfig


def model_card(
    folder: str,
    name: str,
    draft: DraftConfig,
    config: ModelConfig,
    size: int,
    trained: Mapping[str, Any],
    evaluated: Mapping[str, Any],
    data: Mapping[str, Any],
) -> str:
    """Return the README of a draft's folder.

    Args:
        folder: its name.
        name: of the draft in the run.
        draft, config: its shape.
        size: bytes of the weights' file.
        trained, evaluated, data: `train.json`, `eval.json` and `data/manifest.json`; empty where a stage has not run.
    """
    figures: Mapping[str, Any] = next((d for d in evaluated.get("drafts", []) if d["name"] == name), {})
    run = dict(trained.get("config") or {})
    lines = [
        f"# {folder}",
        "",
        f"A draft for speculative decoding with **{run.get('target', 'its target')}**. It is not a model to talk to:",
        "its one use is to guess cheaply what that target says next. Whatever it proposes, the target decides.",
        "",
        "| | |",
        "|---|---|",
        f"| architecture | {_kind(draft)}: {draft.layers} layers, width {draft.width}, "
        f"{draft.heads} query and {draft.kv_heads} key/value heads of {draft.head_dim}, "
        f"SwiGLU {draft.ff}, RoPE base {draft.rope_theta:,.0f} |",
        f"| parameters | {config.body_parameters / 1e6:.2f} M in the body; {_embedding(draft, config)} |",
        f"| output head | the {config.head_rows:,} tokens most frequent in the data; no other is ever proposed |",
        f"| cost | {_share(figures.get('c_params'))} of the target's parameters touched per token |",
        f"| precision | bfloat16{'' if draft.taps else '; embedding int8 with one float16 scale a row'} |",
        f"| size | {size / 1e6:.1f} MB |",
        "| licence | Apache-2.0, like its target |",
        "",
        "## Data",
        "",
        f"{data.get('tokens', 0) / 1e6:.1f} M tokens in texts of {data.get('tokens_per_row', 0)}, written by the target "
        f"itself: {_roles(data)}. No corpus was used. User turns begin with",
        "the openers in `specdec_ref/distill/openers.py`, which share no beginning with the evaluation prompts (tested).",
        f"Seed {data.get('seed')}; every shard's seed and SHA-256 are in the run's manifest.",
        "",
        "## Training",
        "",
        _training(trained),
        "",
        f"    specdec distill data  {_options(run)}",
        f"    specdec distill train {_options(run)}",
        "",
        "## Acceptance on prompts that training never saw",
        "",
        *_acceptance(figures, evaluated),
        "",
        "## Limits",
        "",
        "- English only, like the target, whose biases and errors it imitates.",
        f"- Trained on positions up to {draft.context:,}.",
        "",
    ]
    return "\n".join(lines)


def _kind(draft: DraftConfig) -> str:
    if not draft.taps:
        return "Llama"
    taps = ", ".join(map(str, draft.taps))
    return f"feature-level (EAGLE-3): reads the target's residual stream after {taps} of its blocks"


def _embedding(draft: DraftConfig, config: ModelConfig) -> str:
    if draft.taps:
        return "the target's own embedding"
    return f"embedding {config.vocab_size:,} x {draft.width}, tied"


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.1f} %"


def _roles(data: Mapping[str, Any]) -> str:
    counts = data.get("tokens_by_role") or {}
    total = sum(counts.values()) or 1
    return ", ".join(f"{100 * count / total:.0f} % {role}" for role, count in counts.items())


def _training(trained: Mapping[str, Any]) -> str:
    if not trained:
        return "Not recorded."
    c = trained["config"]["train"]
    held_out = "; ".join(
        f"{name}: KL {row['kl']:.3f}, overlap {row['alpha']:.3f}, argmax agreement {row['match']:.3f}"
        for name, row in trained["held_out"].items()
    )
    return (
        f"Distillation of the target's full next-token distribution over the head's tokens: "
        f"{trained['steps']:,} steps of {c['rows']} texts, "
        f"{trained['token_visits'] / 1e6:,.0f} M token visits\n({trained['epochs']:.1f} epochs), "
        f"{trained['seconds'] / 60:.1f} minutes on {trained['processes']} x {trained['device']} "
        f"({trained['tokens_per_s'] / 1e3:,.0f} k tokens/s).\n"
        f"{_unrolled(trained)}"
        f"Muon (peak {c['muon_lr']}) for matrices, AdamW ({c['adam_lr']}) for the rest, cosine schedule; "
        f"total variation joins the KL loss after "
        f"{100 * c['tv_from']:.0f} % of it.\nWeights averaged with decay {c['ema']}. Seed {trained['config']['seed']}. "
        f"Held-out synthetic text: {held_out}."
    )


def _unrolled(trained: Mapping[str, Any]) -> str:
    if not any(draft.get("taps") for draft in trained["config"]["drafts"]):
        return ""
    c = trained["config"]["train"]
    return (
        f"Unrolled over {c['unroll']} drafted tokens, each weighted {c['unroll_decay']} of the one before.\n"
    )


def _acceptance(figures: Mapping[str, Any], evaluated: Mapping[str, Any]) -> list[str]:
    if not figures:
        return ["Not measured yet."]
    classes = sorted(figures["classes"])
    lines = [
        f"tau is tokens per target pass, the plain mean over classes; "
        f"{evaluated.get('prompts')} prompts, {evaluated.get('new_tokens')} new tokens, "
        "95 % interval by bootstrap over prompts.",
        "",
        "| K | greedy | T = 1 |",
        "|---|---|---|",
    ]
    for k in figures["greedy"]:
        cells = [_cell(figures[mode].get(k)) for mode in ("greedy", "t1")]
        lines.append(f"| {k} | {cells[0]} | {cells[1]} |")
    lines += ["", "| K = 4 | " + " | ".join(classes) + " |", "|---" * (len(classes) + 1) + "|"]
    for mode, label in (("greedy", "greedy"), ("t1", "T = 1")):
        at4 = figures[mode].get("4")
        if at4:
            lines.append(f"| {label} | " + " | ".join(f"{at4['classes'][c]:.2f}" for c in classes) + " |")
    lines += [
        "",
        "Acceptance by position (greedy, K = 4): " + ", ".join(f"{a:.2f}" for a in figures["alpha"]) + ".",
    ]
    return lines


def _cell(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else f"{row['tau']:.2f} ({row['ci'][0]:.2f} to {row['ci'][1]:.2f})"


def _options(run: Mapping[str, Any]) -> str:
    """The options that make this run again: its named configuration, and what differs from it."""
    name = str(run.get("name", "h200"))
    changes = _changes(load_config(name).to_json(), run) if name in CONFIGS else {}
    return f"--config {name}" + (f" --set '{json.dumps(changes)}'" if changes else "")


def _changes(named: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for key, value in run.items():
        if isinstance(value, Mapping) and isinstance(named.get(key), Mapping):
            if inner := _changes(named[key], value):
                changes[key] = inner
        elif key in named and value != named[key] and key != "target":  # the target is --target's
            changes[key] = value
    return changes
