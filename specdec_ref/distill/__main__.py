"""`python -m specdec_ref.distill STAGE …`: the stages without the kit's command line, for GPU nodes and launchers.

Example, two GPUs: accelerate launch --num_processes 2 -m specdec_ref.distill train --config h200 --out runs/h200
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from specdec_ref.errors import SpecdecError, UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage; returns the exit code (0 done, 1 failed, 2 used wrongly)."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except SpecdecError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specdec_ref.distill", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)
    for name, help_ in (
        ("encode", "write texts.json: openers and evaluation prompts as token ids"),
        ("data", "the target writes the training data"),
        ("train", "train the drafts on it"),
        ("eval", "acceptance on unseen prompts"),
        ("export", "write model folders"),
        ("join", "put a model folder's parts together"),
        ("selfcheck", "compare the GPU kernels with PyTorch and measure throughput"),
    ):
        stage = stages.add_parser(name, help=help_)
        if name == "join":
            stage.add_argument("folder", type=Path)
            continue
        stage.add_argument("--config", default="smoke", help="smoke or h200")
        stage.add_argument("--set", default="", help='JSON overrides, as {"train": {"minutes": 5}}')
        stage.add_argument("--target", help="where the target is: a name, a folder, a .gguf file")
        stage.add_argument("--out", type=Path, default=Path("runs/distill"))
        if name in ("data", "train"):
            stage.add_argument(
                "--minutes", type=float, default=0.0, help="stop after so long; the next call goes on"
            )
        if name in ("data", "eval"):
            stage.add_argument("--texts", type=Path, help="a texts.json made by `encode`")
        if name == "encode":
            stage.add_argument(
                "--prompts", type=Path, help="evaluation prompts (JSON lines, or a folder of them)"
            )
        if name == "eval":
            stage.add_argument(
                "--draft", type=Path, action="append", default=[], help="also measure this model folder"
            )
            stage.add_argument("--engine", choices=("batched", "reference"), default="batched")
        if name == "export":
            stage.add_argument("--to", type=Path, required=True, help="where the model folders go")
            stage.add_argument("--split", type=int, default=0, help="cut weights into parts of so many MiB")
            stage.add_argument("--prefix", default="draft")
    return parser


def _run(options: argparse.Namespace) -> None:
    from specdec_ref.distill.config import load_config

    if options.stage == "join":
        from specdec_ref.distill.export import join

        print(join(options.folder))
        return
    config = load_config(options.config, options.set or None)
    if options.stage == "encode":
        from specdec_ref.distill.target import target_texts

        target_texts(options.target or config.target, options.prompts).save(options.out / "texts.json")
    elif options.stage == "data":
        from specdec_ref.distill.data import make_data

        make_data(config, options.out, minutes=options.minutes, target=options.target, texts=options.texts)
    elif options.stage == "train":
        from specdec_ref.distill.train import train

        train(config, options.out, minutes=options.minutes, target=options.target)
    elif options.stage == "eval":
        from specdec_ref.distill.evaluate import evaluate

        evaluate(
            config,
            options.out,
            target=options.target,
            texts=options.texts,
            drafts=options.draft,
            engine=options.engine,
        )
    elif options.stage == "export":
        from specdec_ref.distill.export import export

        for folder in export(options.out, options.to, split=options.split, prefix=options.prefix):
            print(folder)
    elif options.stage == "selfcheck":
        from specdec_ref.distill.selfcheck import selfcheck

        selfcheck(config, options.out, target=options.target)


if __name__ == "__main__":
    sys.exit(main())
