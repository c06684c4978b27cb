"""Stage 1: the target writes its own training data, shard by shard, on any number of processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from specdec_ref.distill.checkpoint import refuse_differences
from specdec_ref.distill.config import DistillConfig
from specdec_ref.distill.generate import Writer, plan_batch
from specdec_ref.distill.processes import accelerator_for, resolve_texts
from specdec_ref.distill.progress import Log, bar
from specdec_ref.distill.shards import (
    finished_shards,
    read_manifest,
    shard_header,
    shard_path,
    write_manifest,
    write_shard,
)
from specdec_ref.distill.target import load_target


def shard_seed(seed: int, index: int) -> int:
    """Seed of a shard: of the run and the shard alone, so that any number of processes makes the same data."""
    return (seed * 65_537 + index) * 1_024 & 0x7FFFFFFF


def make_data(
    config: DistillConfig,
    out: Path,
    *,
    minutes: float = 0.0,
    target: str | None = None,
    texts: Path | None = None,
) -> dict[str, Any]:
    """Write the shards that are missing and the manifest of all that are there.

    Args:
        config: the run.
        out: its folder; shards go to `out/data`.
        minutes: start no shard that would not be finished after so long (0: no limit).
        target: where the target is, if not where the configuration says.
        texts: encoded openers and prompts (the `encode` stage's file); default: encode them now.

    Returns:
        the manifest.
    """
    accelerator = accelerator_for()
    start = time.perf_counter()
    folder = out / "data"
    folder.mkdir(parents=True, exist_ok=True)
    log = Log(out / "log_data.jsonl", accelerator.is_main_process)
    check_same_data(folder, config)
    pieces = resolve_texts(config, out, texts, target, accelerator)
    done = set(finished_shards(folder))
    accelerator.wait_for_everyone()  # all look before anyone writes
    missing = [i for i in range(config.data.shards) if i not in done]
    mine = missing[accelerator.process_index :: accelerator.num_processes]
    log(
        "data",
        missing=len(missing),
        finished=len(done),
        processes=accelerator.num_processes,
        device=str(accelerator.device),
    )
    if mine:
        dtype = torch.bfloat16 if accelerator.device.type == "cuda" else torch.float32
        model = load_target(target or config.target).to(accelerator.device, dtype)
        writer = Writer(model, config.data.rows, config.data.tokens)
        per_shard = config.data.rows * config.data.tokens
        progress = bar(len(mine) * per_shard, "data", accelerator.is_main_process, "tok")
        took = 0.0
        for index in mine:
            began = time.perf_counter()
            if minutes and began - start + took > 60 * minutes:
                break
            seed = shard_seed(config.seed, index)
            tokens, roles = writer.write(plan_batch(config.data, pieces, seed), pieces.end_of_turn, seed)
            write_shard(folder, index, tokens, roles, {"seed": seed, "run": config.name})
            took = time.perf_counter() - began
            progress.update(per_shard)
            log("shard", index=index, seconds=took, tokens_per_s=round(per_shard / took))
        progress.close()
        del writer
    accelerator.wait_for_everyone()
    manifest: dict[str, Any] = {}
    if accelerator.is_main_process:
        seconds = time.perf_counter() - start
        manifest = write_manifest(folder, _about(config))
        made = (len(manifest["shards"]) - len(done)) * config.data.rows * config.data.tokens
        log(
            "data done", tokens=manifest["tokens"], by_role=manifest["tokens_by_role"], seconds=seconds,
            tokens_per_s=round(made / seconds), processes=accelerator.num_processes,
        )  # fmt: skip
    accelerator.wait_for_everyone()
    return manifest


def check_same_data(folder: Path, config: DistillConfig) -> None:
    """Refuse to add shards to another run's. More shards of the same recipe are welcome.

    Raises:
        UsageError: the manifest, or the first shard where there is no manifest yet, is of another target, seed or recipe.
    """
    made, ours = dict(read_manifest(folder)), _about(config)
    for about in (made.get("recipe", {}), ours["recipe"]):
        about.pop("shards", None)
    refuse_differences(made, ours, ("target", "seed", "recipe"), folder)
    for index in finished_shards(folder)[:1]:
        header = shard_header(folder, index)
        expected = {"seed": shard_seed(config.seed, index), "shape": [config.data.rows, config.data.tokens]}
        refuse_differences(header, expected, ("seed", "shape"), shard_path(folder, index))


def _about(config: DistillConfig) -> dict[str, Any]:
    return {
        "run": config.name,
        "target": config.target,
        "seed": config.seed,
        "recipe": config.to_json()["data"],
    }
