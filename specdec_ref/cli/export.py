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


EXECUTORCH_HELP = """Write a .pte for ExecuTorch (XNNPACK), its KV cache outside, in the runtime's pool.

int8 has a scale per row, int4 one per 32 weights; both round activations to 8 bit, token by token.

Example: specdec export executorch --model target --precision int4 --out build/target-int4.pte"""


@app.command("executorch", help=EXECUTORCH_HELP)
def executorch(
    out: Annotated[Path, typer.Option("--out", help="The file to write.", dir_okay=False)],
    model: Model = "target",
    precision: Annotated[
        Literal["fp32", "int8", "int4"], typer.Option(help="Of the linear layers.")
    ] = "int4",
    head_precision: Annotated[
        Literal["fp32", "int8", "int4"] | None, typer.Option(help="Of the output head; default: the same.")
    ] = None,
    context: Annotated[int, typer.Option(min=2, help="Most tokens of prompt and answer together.")] = 2048,
) -> None:
    """Write a .pte."""
    import time

    import torch

    from specdec_ref.export.executorch import Options, write_executorch
    from specdec_ref.export.source import load_source

    torch.set_num_threads(1)
    began = time.perf_counter()
    loaded, tokenizer = load_source(model)
    options = Options(precision, head_precision, context)
    done = write_executorch(out, loaded, tokenizer, options, source=model)
    print(
        f"{out}: {out.stat().st_size:,} bytes, {done['delegate_calls']} partitions, "
        f"{done['delegated_share']:.1%} of the linear multiply-adds delegated, {time.perf_counter() - began:.0f} s"
    )
