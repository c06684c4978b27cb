"""What every stage needs of the processes it runs in: Accelerate's view of them, and pieces of text they agree on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from specdec_ref.distill.config import DistillConfig
from specdec_ref.distill.target import target_texts
from specdec_ref.distill.texts import Texts


def accelerator_for() -> Any:
    """An `Accelerator`: one CPU or GPU, or the processes that `python -m torch.distributed.run` started, on any machines.

    (`accelerate launch --cpu` starts one process whatever number it is given.)
    """
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    if not torch.cuda.is_available():
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    # The drafts' gradients all arrive in every step; views into the buckets save a copy of them.
    ddp = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    return Accelerator(mixed_precision="no", kwargs_handlers=[ddp])


def resolve_texts(
    config: DistillConfig, out: Path, given: Path | None, target: str | None, accelerator: Any
) -> Texts:
    """The run's `Texts`: the given file, else `out/texts.json`, else encoded now and kept there."""
    kept = out / "texts.json"
    if accelerator.is_main_process and (given or not kept.exists()):
        texts = Texts.load(given) if given else target_texts(target or config.target)
        texts.save(kept)
    accelerator.wait_for_everyone()
    return Texts.load(kept)
