"""`specdec distill …`: making a draft, stage by stage. `python -m specdec_ref.distill` runs the same commands.

Every stage can be killed at any moment and run again, and takes the same options on one process and on many.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from specdec_ref.distill.config import DistillConfig

app = typer.Typer(
    help="Train a draft on its target's own output: data, train, eval, export.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Config = Annotated[str, typer.Option("--config", help="A named run: smoke (seconds on a CPU) or h200.")]
Overrides = Annotated[
    str, typer.Option("--set", help='Changes to the run, as JSON: \'{"train": {"minutes": 5}}\'.')
]
Target = Annotated[
    str | None,
    typer.Option("--target", help="The target: a name, a folder, a .gguf file. Default: the run's own."),
]
Out = Annotated[Path, typer.Option("--out", help="The run's folder: data, checkpoint, logs and results.")]
Minutes = Annotated[
    float,
    typer.Option("--minutes", min=0.0, help="Stop after so long; the same command goes on. 0: no limit."),
]
Texts = Annotated[
    Path | None, typer.Option("--texts", help="A texts.json made by `encode`. Default: encode now.")
]

OUT = Path("runs/distill")


def _run_of(config: str, overrides: str) -> DistillConfig:
    from specdec_ref.distill.config import load_config

    return load_config(config, overrides or None)


ENCODE_HELP = """Write texts.json: openers and evaluation prompts as token ids, for machines without the tokenizer.

Example: specdec distill encode --config h200 --out runs/h200"""


@app.command("encode", help=ENCODE_HELP)
def encode(
    config: Config = "smoke",
    overrides: Overrides = "",
    target: Target = None,
    out: Out = OUT,
    prompts: Annotated[
        Path | None, typer.Option(help="Evaluation prompts: JSON lines, or a folder. Default: the kit's own.")
    ] = None,
) -> None:
    """Encode the run's texts."""
    from specdec_ref.distill.target import target_texts

    run = _run_of(config, overrides)
    target_texts(target or run.target, prompts).save(out / "texts.json")
    print(out / "texts.json")


DATA_HELP = """The target writes the training data, shard by shard.

Example: specdec distill data --config smoke --out runs/smoke"""


@app.command("data", help=DATA_HELP)
def data(
    config: Config = "smoke",
    overrides: Overrides = "",
    target: Target = None,
    out: Out = OUT,
    minutes: Minutes = 0.0,
    texts: Texts = None,
) -> None:
    """Write the missing shards."""
    run = _run_of(config, overrides)
    from specdec_ref.distill.data import make_data

    make_data(run, out, minutes=minutes, target=target, texts=texts)


TRAIN_HELP = """Train the run's drafts on its data; one command trains all of them.

Example: specdec distill train --config smoke --out runs/smoke

Two processes: python -m torch.distributed.run --standalone --nproc_per_node 2 -m specdec_ref.distill train"""


@app.command("train", help=TRAIN_HELP)
def train(
    config: Config = "smoke",
    overrides: Overrides = "",
    target: Target = None,
    out: Out = OUT,
    minutes: Minutes = 0.0,
) -> None:
    """Train, or go on training."""
    run = _run_of(config, overrides)
    from specdec_ref.distill.train import train as train_drafts

    train_drafts(run, out, minutes=minutes, target=target)


EVAL_HELP = """Measure acceptance on prompts that training never saw.

Example: specdec distill eval --config smoke --out runs/smoke"""


@app.command("eval", help=EVAL_HELP)
def evaluate(
    config: Config = "smoke",
    overrides: Overrides = "",
    target: Target = None,
    out: Out = OUT,
    texts: Texts = None,
    draft: Annotated[
        list[Path] | None, typer.Option(help="Measure this model folder as well; may be given again.")
    ] = None,
    engine: Annotated[
        Literal["batched", "reference"],
        typer.Option(help="batched, or reference: the kit's own loop, prompt by prompt."),
    ] = "batched",
) -> None:
    """Evaluate the run's drafts and any given ones."""
    run = _run_of(config, overrides)
    from specdec_ref.distill.evaluate import evaluate as measure

    measure(run, out, target=target, texts=texts, drafts=draft or [], engine=engine)


EXPORT_HELP = """Write each trained draft as a model folder with its card.

Example: specdec distill export --out runs/smoke --to runs/smoke/models"""


@app.command("export", help=EXPORT_HELP)
def export(
    to: Annotated[Path, typer.Option(help="Where the model folders go.")],
    config: Config = "smoke",
    overrides: Overrides = "",
    out: Out = OUT,
    split: Annotated[
        int, typer.Option(min=0, help="Cut weights into parts of so many MiB; `join` puts them together.")
    ] = 0,
    prefix: Annotated[str, typer.Option(help="What the folders' names begin with.")] = "draft",
) -> None:
    """Export the run's drafts."""
    _run_of(config, overrides)  # the run's folder says all that is needed; a wrong name is still an error
    from specdec_ref.distill.export import export as write

    for folder in write(out, to, split=split, prefix=prefix):
        print(folder)


JOIN_HELP = """Put a model folder's weights together from the parts of `export --split`.

Example: specdec distill join models/draft-320x4"""


@app.command("join", help=JOIN_HELP)
def join(folder: Annotated[Path, typer.Argument(help="The model folder.")]) -> None:
    """Join parts."""
    from specdec_ref.distill.export import join as join_parts

    print(join_parts(folder))


SELFCHECK_HELP = """Compare the GPU kernels with plain PyTorch, and measure throughput.

Example: specdec distill selfcheck --config h200"""


@app.command("selfcheck", help=SELFCHECK_HELP)
def selfcheck(
    config: Config = "smoke", overrides: Overrides = "", target: Target = None, out: Out = OUT
) -> None:
    """Check this machine's kernels."""
    run = _run_of(config, overrides)
    from specdec_ref.distill.selfcheck import selfcheck as check

    check(run, out, target=target)
