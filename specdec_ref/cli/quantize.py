"""`specdec quantize`: a model as one small file that everything else reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specdec_ref.cli.options import Json, check_writable, write_json
from specdec_ref.errors import UsageError

HELP = """Quantize a model into one file; `--target FILE` and `--draft FILE` of the other commands take it.

Example: specdec quantize --model draft --scheme awq-gptq --bits 4 --group 32 --out build/draft-4.safetensors"""


def run(
    model: Annotated[str, typer.Option(help="A model's name, folder or hub id.")] = "smollm2-135m",
    scheme: Annotated[
        str,
        typer.Option(
            help="rtn (round to nearest), awq (activation-aware), or awq-gptq (and error feedback)."
        ),
    ] = "awq",
    bits: Annotated[int, typer.Option(help="Bits per weight of the layers' linears: 2 to 8.")] = 4,
    group: Annotated[str, typer.Option(help="Weights per scale: 32, 64, 128, or channel.")] = "32",
    out: Annotated[Path | None, typer.Option(help="The file to write.", dir_okay=False)] = None,
    asymmetric: Annotated[
        bool, typer.Option("--asymmetric", help="A minimum per group as well (not XNNPACK's form).")
    ] = False,
    embedding_bits: Annotated[
        int, typer.Option(help="Bits of embedding and head; 8 has one scale a row, fewer take --group.")
    ] = 8,
    head_bits: Annotated[
        int | None, typer.Option(help="Bits of an untied head; default: the embedding's.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="JSON lines with `text` for AWQ; default: the kit's own.")
    ] = None,
    json: Json = None,
) -> None:
    """Quantize one model."""
    if out is None:
        raise UsageError("say where to write with --out FILE")
    if out.is_dir():
        raise UsageError("is a folder", where=str(out), fix="name a file")
    check_writable(json)
    from specdec_ref.quantization.calibration import calibration_ids
    from specdec_ref.quantization.convert import quantize_to_file
    from specdec_ref.quantization.recipe import METHODS, Recipe, scheme_for
    from specdec_ref.quantization.scheme import Scheme
    from specdec_ref.quantization.source import open_source

    if scheme not in METHODS:
        raise UsageError(f"unknown scheme {scheme!r}", where="--scheme", fix=f"use {' or '.join(METHODS)}")
    size = parse_group(group)
    recipe = Recipe(
        scheme,
        Scheme(bits, size, not asymmetric),
        scheme_for(embedding_bits, size),
        scheme_for(embedding_bits if head_bits is None else head_bits, size),
    )
    source = open_source(model)
    texts = calibration_ids(source, calibration) if recipe.method != "rtn" else []

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(
                f"\rlayer {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True
            )

    report = quantize_to_file(source, recipe, out, calibration=texts, progress=progress)
    print(
        f"{out}: {recipe}, {report.file_bytes / 1e6:.1f} MB "
        f"({report.bits_per_weight:.2f} bits per weight, scales and norms included)"
    )
    if json is not None:
        write_json(
            json,
            {
                "model": source.name,
                "recipe": recipe.to_json(),
                "file_bytes": report.file_bytes,
                "weight_bytes": report.weight_bytes,
                "bits_per_weight": report.bits_per_weight,
            },
        )


def parse_group(text: str) -> int:
    """ "channel" or a number of weights."""
    if text == "channel":
        return 0
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise UsageError(f"--group takes a number of weights or channel, got {text!r}")
    return int(text)
