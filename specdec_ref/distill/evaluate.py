"""Stage 3: how many drafted tokens the target accepts, on prompts that training never saw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from specdec_ref.distill.batched import speculate
from specdec_ref.distill.config import DistillConfig, EvalConfig
from specdec_ref.distill.export import draft_from, trained_drafts
from specdec_ref.distill.processes import accelerator_for, resolve_texts
from specdec_ref.distill.progress import Log, rounded
from specdec_ref.distill.target import load_target
from specdec_ref.distill.texts import Prompt
from specdec_ref.errors import CheckpointError
from specdec_ref.feature_draft import FeatureDraft
from specdec_ref.files import atomic_file
from specdec_ref.model import Decoder
from specdec_ref.speedup import c_params
from specdec_ref.trace import Round, Telemetry

Engine = Literal["batched", "reference"]
Draft = Decoder | FeatureDraft
QUOTED = 4
"""The lookahead whose figures are quoted."""


@dataclass(frozen=True)
class Job:
    """One measurement: which draft, K, and temperature (0 or 1)."""

    draft: str
    lookahead: int
    temperature: float


def evaluate(
    config: DistillConfig,
    out: Path,
    *,
    target: str | None = None,
    texts: Path | None = None,
    drafts: Sequence[Path] = (),
    engine: Engine = "batched",
) -> dict[str, Any]:
    """Measure the drafts of a run, and any given draft folders beside them; jobs are shared out over the processes.

    Args:
        config: the run.
        out: its folder.
        target, texts: as for the other stages.
        drafts: folders of finished drafts to measure as well (loaded through `specdec_ref.checkpoints`).
        engine: "batched", or "reference": the kit's own decoding loop, prompt by prompt.

    Returns:
        what is written to `out/eval.json`.
    """
    accelerator = accelerator_for()
    log = Log(out / "log_eval.jsonl", accelerator.is_main_process)
    pieces = resolve_texts(config, out, texts, target, accelerator)
    prompts = choose_prompts(pieces.prompts, config.eval.prompts_per_class)
    torch.backends.cuda.matmul.allow_tf32 = False  # near-ties must fall as they do on a CPU
    big = load_target(target or config.target).to(accelerator.device)
    models = {name: draft_from(tensors, c) for name, (_, c, tensors) in _trained(out).items()}
    for folder in drafts:
        models[folder.name] = _load_draft(folder, pieces.tokenizer_sha256)
    if not models:
        raise CheckpointError(
            "there is no draft to measure",
            where=str(out),
            fix="run the `train` stage first, or name a model folder with --draft",
        )
    models = {name: model.to(accelerator.device) for name, model in models.items()}
    jobs = [Job(n, k, t) for k in config.eval.lookaheads for n in models for t in (0.0, 1.0)]
    log(
        "eval", prompts=len(prompts), jobs=len(jobs), drafts=list(models), processes=accelerator.num_processes
    )
    rows: list[tuple[Job, dict[str, Any]]] = []
    for job in jobs[accelerator.process_index :: accelerator.num_processes]:
        rounds = measure(
            big, models[job.draft], prompts, job, config.eval, [pieces.end_of_turn], config.seed, engine
        )
        rows.append(
            (
                job,
                summarise(
                    prompts * (len(rounds) // len(prompts)), rounds, config.eval.resamples, config.seed
                ),
            )
        )
    if accelerator.num_processes > 1:
        from accelerate.utils import gather_object

        rows = gather_object(rows)
    reports = [_draft_report(name, model, big, rows) for name, model in models.items()]
    report = {
        "run": config.name,
        "engine": engine,
        "prompts": len(prompts),
        "new_tokens": config.eval.new_tokens,
        "repeats_t1": config.eval.repeats,
        "seed": config.seed,
        "drafts": reports,
    }
    for draft in reports:
        log(
            "acceptance",
            **{
                k: draft[k]
                for k in ("name", "c_params", "tau_greedy_k4", "tau_t1_k4", "ci", "alpha", "classes")
            },
        )
    if accelerator.is_main_process:
        with atomic_file(out / "eval.json") as part:
            part.write_text(json.dumps(rounded(report, 4), indent=1) + "\n", encoding="utf-8")
    accelerator.wait_for_everyone()
    return report


def _load_draft(folder: Path, tokenizer_sha256: str) -> Draft:
    from specdec_ref import checkpoints
    from specdec_ref.checkpoints.feature import is_feature_draft, load_feature_draft

    loaded = load_feature_draft(folder) if is_feature_draft(folder) else checkpoints.load(folder)
    if loaded.tokenizer_sha256 and tokenizer_sha256 and loaded.tokenizer_sha256 != tokenizer_sha256:
        raise CheckpointError(
            "the draft was made for another tokenizer than this run's target", where=str(folder)
        )
    return loaded.model


def _trained(out: Path) -> dict[str, Any]:
    return trained_drafts(out) if (out / "checkpoint.pt").exists() else {}


def choose_prompts(prompts: Sequence[Prompt], per_class: int) -> list[Prompt]:
    """The first `per_class` prompts of every class; all of them if 0."""
    seen: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        seen[prompt.kind] = seen.get(prompt.kind, 0) + 1
        if not per_class or seen[prompt.kind] <= per_class:
            chosen.append(prompt)
    return chosen


def measure(
    target: Decoder, draft: Draft, prompts: Sequence[Prompt], job: Job, config: EvalConfig, eos_ids: Sequence[int],
    seed: int, engine: Engine = "batched",
) -> list[list[Round]]:  # fmt: skip
    """The rounds of every text: all prompts in order, `config.repeats` times over when sampling."""
    repeats = config.repeats if job.temperature > 0 else 1
    work = [(prompt.tokens, seed * 1000 + i) for i, prompt in enumerate(list(prompts) * repeats)]
    if engine == "reference":
        return [_reference(target, draft, tokens, job, config, eos_ids, s) for tokens, s in work]
    rounds: list[list[Round]] = [[] for _ in work]
    order = sorted(range(len(work)), key=lambda i: len(work[i][0]))  # a batch is padded to its longest prompt
    for start in range(0, len(work), config.batch):
        part = order[start : start + config.batch]
        done = speculate(
            target, draft, [work[i][0] for i in part], [work[i][1] for i in part], lookahead=job.lookahead,
            temperature=job.temperature, new_tokens=config.new_tokens, eos_ids=eos_ids,
        )  # fmt: skip
        for i, trace in zip(part, done, strict=True):
            rounds[i] = trace
    return rounds


def _reference(
    target: Decoder,
    draft: Draft,
    tokens: list[int],
    job: Job,
    config: EvalConfig,
    eos_ids: Sequence[int],
    seed: int,
) -> list[Round]:
    from specdec_ref.decoding import speculative
    from specdec_ref.drafters import Drafter, FeatureDrafter, ModelDrafter
    from specdec_ref.runner import Runner
    from specdec_ref.sampling import Sampling

    runner = Runner(target)
    drafter: Drafter
    if isinstance(draft, FeatureDraft):
        drafter = FeatureDrafter(draft, runner)
    else:
        drafter = ModelDrafter(Runner(draft), runner.vocab_size)
    return speculative(
        runner,
        drafter,
        tokens,
        lookahead=job.lookahead,
        sampling=Sampling(temperature=job.temperature),
        max_new_tokens=config.new_tokens,
        eos_ids=eos_ids,
        seed=seed,
    ).trace


def summarise(
    prompts: Sequence[Prompt], rounds: Sequence[list[Round]], resamples: int, seed: int
) -> dict[str, Any]:
    """tau as the plain mean over classes, with a 95 % bootstrap interval over prompts; acceptance by position.

    Args:
        prompts: one a text; texts of one prompt are resampled together.
        rounds: of each text.
        resamples: of the bootstrap.
        seed: of the resampling.
    """
    counted = [Telemetry.of(trace) for trace in rounds]
    classes: dict[str, dict[str, list[int]]] = {}
    for prompt, telemetry in zip(prompts, counted, strict=True):
        pair = classes.setdefault(prompt.kind, {}).setdefault(prompt.name, [0, 0])
        pair[0] += telemetry.emitted
        pair[1] += telemetry.target_passes
    rng = np.random.default_rng(seed)
    means, samples = {}, []
    for kind, names in classes.items():
        table = np.array(list(names.values()), dtype=float)  # [prompts, (emitted, passes)]
        means[kind] = float(table[:, 0].sum() / table[:, 1].sum())
        drawn = table[rng.integers(len(table), size=(resamples, len(table)))].sum(1)
        samples.append(drawn[:, 0] / drawn[:, 1])
    low, high = np.percentile(np.mean(samples, axis=0), [2.5, 97.5])
    total = sum(counted, Telemetry())
    return {
        "tau": float(np.mean(list(means.values()))),
        "ci": [float(low), float(high)],
        "classes": means,
        "alpha": total.alpha,
        "emitted": total.emitted,
        "passes": total.target_passes,
    }


def _draft_report(
    name: str, model: Draft, target: Decoder, rows: list[tuple[Job, dict[str, Any]]]
) -> dict[str, Any]:
    mine = {(j.temperature, j.lookahead): row for j, row in rows if j.draft == name}
    greedy = {str(k): mine[0.0, k] for t_, k in sorted(mine) if t_ == 0.0}
    sampled = {str(k): mine[1.0, k] for t_, k in sorted(mine) if t_ == 1.0}
    quoted = str(QUOTED) if str(QUOTED) in greedy else next(iter(greedy))
    return {
        "name": name,
        "kind": "feature" if isinstance(model, FeatureDraft) else "model",
        "params_body": model.config.body_parameters,
        "c_params": c_params(model, target),
        "tau_greedy_k4": greedy[quoted]["tau"],
        "tau_t1_k4": sampled[quoted]["tau"],
        "alpha": greedy[quoted]["alpha"],
        "ci": {"greedy": greedy[quoted]["ci"], "t1": sampled[quoted]["ci"]},
        "classes": greedy[quoted]["classes"],
        "greedy": greedy,
        "t1": sampled,
    }
