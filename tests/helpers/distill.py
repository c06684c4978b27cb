"""The shortened smoke run, and what its folder says. As a program: one of several training processes.

python -m torch.distributed.run --standalone --nproc_per_node 2 -m tests.helpers.distill FOLDER
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch

from specdec_ref.distill import train as training
from specdec_ref.distill.config import DistillConfig, load_config
from specdec_ref.distill.data import make_data
from specdec_ref.errors import SpecdecError

SETTINGS = {"train": {"steps": 60, "log_every": 1}, "eval": {"lookaheads": [4]}}


def short_smoke() -> DistillConfig:
    """The run of `SETTINGS`: `--config smoke --set …` as an object."""
    return load_config("smoke", SETTINGS)


def losses(out: Path) -> list[tuple[int, float]]:
    """(step, loss) of every step in the log, in order; a resumed run has some steps twice."""
    lines = (out / "log_train.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["event"] == "step"]
    return [(line["step"], line["loss"]) for line in steps]


def digest(weights: dict[str, torch.Tensor]) -> str:
    """SHA-256 over the bytes of all weights."""
    whole = hashlib.sha256()
    for tensor in weights.values():
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()


def one_of_several(out: Path) -> None:
    """Write data and train; note this process's weights, and what happens when one process's weights go astray."""
    torch.set_num_threads(1)
    config = load_config("smoke", {**SETTINGS, "train": {"steps": 12, "log_every": 1}})
    make_data(config, out)
    run = training._Run(config, out, config.target, 0.0)
    run.loop()
    run.finish()
    rank = run.accelerator.process_index
    report = {"weights": digest(run.parameters[0]), "complaint": ""}
    if rank == 1:
        with torch.no_grad():
            run.parameters[0]["norm.weight"][0] += 1e-3
    try:
        run.check_agreement()
    except SpecdecError as error:
        report["complaint"] = str(error)
    (out / f"rank{rank}.json").write_text(json.dumps(report))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    one_of_several(Path(sys.argv[1]))
