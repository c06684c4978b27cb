"""`specdec export …`: a model in another program's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(help="Write a model for another runtime.", no_args_is_help=True)

Model = Annotated[str, typer.Option("--model", help="target, draft, a model's name, a folder or a hub id.")]

TRANSFORMERS_HELP = """Write a folder for transformers: AutoModelForCausalLM and AutoTokenizer load it.

Example: specdec export transformers --model draft --out build/draft-hf"""


@app.command("transformers", help=TRANSFORMERS_HELP)
def transformers(
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")], model: Model = "draft"
) -> None:
    """Write a transformers folder."""
    from specdec_ref.export.source import load_source, refuse_existing

    refuse_existing(out)
    from specdec_ref.export.hf import write_transformers

    print(write_transformers(out, *load_source(model)))


GGUF_HELP = """Write a GGUF file for llama.cpp, tokenizer and chat template included.

Example: specdec export gguf --model draft --precision fp16 --out build/draft.gguf"""


@app.command("gguf", help=GGUF_HELP)
def gguf(
    out: Annotated[Path, typer.Option("--out", help="The file to write.", dir_okay=False)],
    model: Model = "draft",
    precision: Annotated[
        Literal["fp32", "fp16"], typer.Option(help="Of the matrices; fp32 computes what this kit computes.")
    ] = "fp32",
) -> None:
    """Write a GGUF file."""
    from specdec_ref.export.gguf import write_gguf
    from specdec_ref.export.source import load_source

    print(write_gguf(out, *load_source(model), precision=precision))
