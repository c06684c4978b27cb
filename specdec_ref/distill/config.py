"""Everything that decides a distillation run, in dataclasses; two named runs, and overrides from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from specdec_ref.errors import UsageError
from specdec_ref.feature_draft import FeatureConfig
from specdec_ref.model import ModelConfig

T = TypeVar("T")


@dataclass(frozen=True)
class DataConfig:
    """What the target writes, and how it is cut into shards.

    Attributes:
        shards: how many to make; each is one lock-step batch and has a seed of its own.
        rows: texts of a shard.
        tokens: length of each text (at most 1024).
        raw_share: share of texts that are plain documents without chat turns.
        default_system_share, no_system_share: share of chats with the template's default system turn, and with none at
            all; the rest take one of the list in `openers.py`.
        opener_share: share of user turns whose first words are given; the target makes up the others from nothing.
        user_caps: (shortest, longest) user turn before it is ended by force.
        long_user_share: share of chats whose user turn may reach the longest cap (text to rewrite, to summarise, …).
        assistant_cap: longest answer before it is ended by force.
        temperatures: (temperature, share) pairs for answers and documents; user turns are always sampled at 1.
        min_p_share, min_p: share of texts sampled with this min-p, which keeps a small model from losing its thread.
    """

    shards: int = 72
    rows: int = 8192
    tokens: int = 512
    raw_share: float = 0.10
    default_system_share: float = 0.75
    no_system_share: float = 0.10
    opener_share: float = 0.7
    user_caps: tuple[int, int] = (24, 220)
    long_user_share: float = 0.35
    assistant_cap: int = 320
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.40), (0.7, 0.20), (1.0, 0.40))
    min_p_share: float = 0.5
    min_p: float = 0.02


@dataclass(frozen=True)
class DraftConfig:
    """The shape of one draft: a Llama-family decoder with its own tied embedding and a reduced output head.

    With `taps` it is a feature-level draft instead (`specdec_ref.feature_draft`): it reads the target's residual stream
    after so many of its blocks, and the target's embedding.
    """

    name: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    ff: int
    head_rows: int
    head_dim: int = 64
    rope_theta: float = 10_000.0
    context: int = 2048
    taps: tuple[int, ...] = ()

    def model(self, vocab_size: int, target_width: int = 0) -> ModelConfig:
        """The configuration for a target's vocabulary and width; a `FeatureConfig` if there are taps."""
        extra = {"target_width": target_width, "taps": tuple(self.taps)} if self.taps else {}
        return (FeatureConfig if self.taps else ModelConfig)(
            **extra,  # type: ignore[arg-type]
            vocab_size=vocab_size,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.ff,
            max_position_embeddings=self.context,
            rope_theta=self.rope_theta,
            tie_word_embeddings=not self.taps,
            head_rows=min(self.head_rows, vocab_size),
        )


@dataclass(frozen=True)
class TrainConfig:
    """How the drafts learn.

    Attributes:
        steps: length of the schedule in optimiser steps; 0: `minutes` of training time instead.
        minutes: length of the schedule in minutes of training, over all commands that continue the run.
        rows: rows of data per step, over all processes.
        micro_rows: most rows a process puts through the models at once; more are accumulated.
        chains: (rows joined into one text, share of the steps): positions beyond one row must be trained too.
        muon_lr, adam_lr: peak rates of the matrices (Muon) and of everything else (AdamW).
        weight_decay: of the matrices.
        warmup: steps of linear warm-up.
        final_lr: the cosine ends at this share of the peak.
        clip: largest gradient norm of a draft.
        role_weights: loss weight of a token by what is predicted: user turn or template, answer, document.
        tv_from: share of the schedule after which total variation joins the loss (1: never); it ramps up to `tv_weight`
            while the KL term goes down to `kl_end`.
        ema: decay of the averaged weights that are evaluated and exported (0: the last weights).
        held_out_rows: rows at the end of the data that are never trained on.
        checkpoint_seconds: at most this long is lost by a kill.
        log_every: steps between log lines.
        bf16: compute in bfloat16 on a GPU.
        compile: fuse the element-wise parts with torch.compile on a GPU.
        flash: use the fused attention kernel in the unrolled steps on a GPU.
        unroll: drafted tokens that a feature-level draft learns to place one after another (training-time test).
        unroll_decay: loss weight of each of them over the one before.
    """

    steps: int = 0
    minutes: float = 15.0
    rows: int = 192
    micro_rows: int = 96
    chains: tuple[tuple[int, float], ...] = ((1, 0.625), (2, 0.25), (4, 0.125))
    muon_lr: float = 2e-3
    adam_lr: float = 2e-3
    weight_decay: float = 0.01
    warmup: int = 200
    final_lr: float = 0.02
    clip: float = 1.0
    role_weights: tuple[float, float, float] = (0.4, 1.0, 0.5)
    tv_from: float = 0.6
    tv_weight: float = 1.0
    kl_end: float = 0.5
    ema: float = 0.998
    held_out_rows: int = 192
    checkpoint_seconds: float = 120.0
    log_every: int = 50
    bf16: bool = True
    compile: bool = True
    flash: bool = True
    unroll: int = 5
    unroll_decay: float = 0.8


@dataclass(frozen=True)
class EvalConfig:
    """How acceptance is measured.

    Attributes:
        lookaheads: values of K to run; 4 is the one that is quoted.
        new_tokens: length of each text unless it ends sooner.
        repeats: sampled texts per prompt at temperature 1 (greedy needs one).
        prompts_per_class: at most so many; 0 takes all.
        batch: texts decoded side by side.
        resamples: bootstrap resamples over prompts.
    """

    lookaheads: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    new_tokens: int = 128
    repeats: int = 2
    prompts_per_class: int = 0
    batch: int = 256
    resamples: int = 2000


@dataclass(frozen=True)
class DistillConfig:
    """One run: its name, its seed and its four stages."""

    name: str
    target: str
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    drafts: tuple[DraftConfig, ...] = ()
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)

    def to_json(self) -> dict[str, Any]:
        """Plain lists and dictionaries, for logs, manifests and model cards."""
        return json.loads(json.dumps(asdict(self)))


# Cost of a draft: (body + head rows x width) over the target's 134.5 M parameters.
# main:  4 x 1,105,920 + 11,264 x 320 = 8.03 M, 6.0 %      small: 2 x 753,664 + 7,168 x 256 = 3.34 M, 2.5 %
MAIN = DraftConfig("main", width=320, layers=4, heads=5, kv_heads=1, ff=896, head_rows=11_264)
SMALL = DraftConfig("small", width=256, layers=2, heads=4, kv_heads=1, ff=768, head_rows=7_168)

# The same budgets for drafts that read the target's hidden states: no embedding of their own, one wide block.
# fuse 3 x 576 x D, combine (576 + D) x D, block; feature-main: 3.33 M + 11,264 x 416 = 8.02 M; feature-small: 3.36 M in all
FEATURE_MAIN = DraftConfig(
    "feature-main", width=416, layers=1, heads=6, kv_heads=1, ff=1472, head_rows=11_264, taps=(2, 15, 27)
)
FEATURE_SMALL = DraftConfig(
    "feature-small", width=256, layers=1, heads=4, kv_heads=1, ff=896, head_rows=7_168, taps=(2, 15, 27)
)

SMOKE = DistillConfig(
    name="smoke",
    target="random",
    data=DataConfig(shards=6, rows=32, tokens=48, user_caps=(4, 10), assistant_cap=20),
    drafts=(
        DraftConfig("main", width=32, layers=2, heads=2, kv_heads=1, ff=64, head_rows=192, head_dim=16, context=256),
        DraftConfig("small", width=32, layers=1, heads=2, kv_heads=1, ff=32, head_rows=96, head_dim=16, context=256),
    ),
    train=TrainConfig(
        steps=120, rows=16, micro_rows=16, muon_lr=1e-2, adam_lr=1e-2, warmup=10, ema=0.9, held_out_rows=16,
        checkpoint_seconds=0.0, log_every=10, bf16=False, compile=False,
    ),
    eval=EvalConfig(lookaheads=(1, 4), new_tokens=16, repeats=1, prompts_per_class=2, batch=8, resamples=200),
)  # fmt: skip

SMOKE_FEATURE = replace(
    SMOKE,
    name="smoke-feature",
    drafts=(
        DraftConfig(
            "feature-main", width=32, layers=2, heads=2, kv_heads=1, ff=64, head_rows=192, head_dim=16, context=256,
            taps=(1, 2, 3),
        ),
        DraftConfig(
            "feature-small", width=32, layers=1, heads=2, kv_heads=1, ff=32, head_rows=96, head_dim=16, context=256,
            taps=(1, 3),
        ),
    ),
)  # fmt: skip

H200 = DistillConfig(name="h200", target="smollm2-135m", drafts=(MAIN, SMALL))

CONFIGS = {
    "smoke": SMOKE,
    "smoke-feature": SMOKE_FEATURE,
    "h200": H200,
    "h200-feature": replace(H200, name="h200-feature", drafts=(FEATURE_MAIN, FEATURE_SMALL)),
}
"""The named runs: `smoke` takes seconds on a CPU, `h200` about 25 minutes on two H200-class GPUs; `-feature`: the same data
and length with feature-level drafts."""


def load_config(name: str, overrides: str | Mapping[str, Any] | None = None) -> DistillConfig:
    """Return a named run with changes, as in `load_config("h200", '{"train": {"minutes": 5}}')`.

    Raises:
        UsageError: no such run, the overrides are not a JSON object, or they name a field that does not exist.
    """
    if name not in CONFIGS:
        raise UsageError(f"no distillation run is called {name!r}", fix=f"choose one of {', '.join(CONFIGS)}")
    if isinstance(overrides, str):
        try:
            overrides = json.loads(overrides)
        except ValueError as error:
            raise UsageError(f"the overrides are not JSON: {error}", where="--set") from error
    if overrides and not isinstance(overrides, Mapping):
        raise UsageError("the overrides must be a JSON object", where="--set")
    return _override(CONFIGS[name], overrides or {}, "")


def _override(config: T, changes: Mapping[str, Any], path: str) -> T:
    assert is_dataclass(config) and not isinstance(config, type)
    known = {f.name for f in fields(config)}
    values: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in known:
            raise UsageError(
                f"there is no field {path + key!r}", where="--set", fix=f"fields: {', '.join(sorted(known))}"
            )
        old = getattr(config, key)
        if not isinstance(value, _accepted(old)) or (isinstance(value, bool) and not isinstance(old, bool)):
            raise UsageError(
                f"{path + key!r} cannot be {value!r}", where="--set", fix=f"its default is {_plain(old)}"
            )
        if is_dataclass(old) and isinstance(value, Mapping):
            value = _override(old, value, f"{path}{key}.")
        elif key == "drafts":
            value = tuple(draft_config(item) for item in changes[key])
        elif isinstance(old, tuple):
            value = _tuples(value)
        values[key] = value
    return replace(config, **values)


def _accepted(default: Any) -> tuple[type, ...]:
    """The JSON types that a field with this default takes."""
    if is_dataclass(default):
        return (dict,)
    if isinstance(default, tuple):
        return (list, tuple)
    return (int, float) if isinstance(default, float) else (type(default),)


def draft_config(values: Mapping[str, Any]) -> DraftConfig:
    """A draft from its JSON form.

    Raises:
        UsageError: a field is missing or unknown.
    """
    try:
        return DraftConfig(**{key: _tuples(value) for key, value in values.items()})
    except (TypeError, AttributeError) as error:
        raise UsageError(f"not a draft: {error}", where="drafts") from error


def _plain(value: Any) -> str:
    return json.dumps(
        asdict(value) if is_dataclass(value) and not isinstance(value, type) else value, default=asdict
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
