"""`specdec bench …`: measurements, each a table on the screen and a JSON file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specdec_ref.cli.options import DraftName, Json, Target, check_writable, header, write_json

app = typer.Typer(help="Measure: every command prints a table and writes JSON.", no_args_is_help=True)

REFERENCE_HELP = """Plain against speculative decoding over a prompt set, in the PyTorch reference.

Example: specdec bench reference --json build/bench_reference.json"""


@app.command("reference", help=REFERENCE_HELP)
def reference(
    json: Json = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One prompt per class, 32 tokens: a smoke test.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file or a folder of them; default: the kit's own.")
    ] = None,
    target: Target = "smollm2-135m",
    draft: DraftName = "lookup+draft",
    lookahead: Annotated[
        str, typer.Option(help="K, or auto: the best by measured costs and acceptance.")
    ] = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Time limit; prompts left out are counted in the result.")
    ] = 9.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Run the reference benchmark."""
    check_writable(json)
    from specdec_ref.bench.reference import Settings, run_reference
    from specdec_ref.bench.reference_table import print_report
    from specdec_ref.cli.generate import parse_lookahead
    from specdec_ref.prompts import load_prompts

    if lookahead != "auto":
        parse_lookahead(lookahead)
    settings = Settings(
        target=target,
        draft=draft,
        lookahead=None if lookahead == "auto" else int(lookahead),
        max_new_tokens=32 if quick else max_new_tokens,
        per_class=1 if quick else None,
        minutes=minutes,
        seed=seed,
    )
    report = header(seed) | run_reference(load_prompts(prompts), settings)
    print_report(report)
    if json is not None:
        write_json(json, report)


DRAFTS_HELP = """Every draft of a target: cost, and tokens per target pass at K = 4, greedy and at temperature 1.

Example: specdec bench drafts --json build/bench_drafts.json"""


@app.command("drafts", help=DRAFTS_HELP)
def drafts(
    json: Json = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One prompt per class, 32 tokens: a smoke test.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file or a folder of them; default: the kit's own.")
    ] = None,
    target: Target = "smollm2-135m",
    draft: Annotated[
        list[str] | None,
        typer.Option(
            help="A model's name or folder; may be given again. Default: all committed ones of the target."
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Run the draft benchmark."""
    check_writable(json)
    from specdec_ref.bench.drafts import Settings, print_report, run_drafts
    from specdec_ref.prompts import load_prompts

    settings = Settings(
        target=target,
        drafts=tuple(draft or ()),
        max_new_tokens=32 if quick else max_new_tokens,
        per_class=1 if quick else 0,
        seed=seed,
    )
    report = header(seed) | run_drafts(load_prompts(prompts), settings)
    print_report(report)
    if json is not None:
        write_json(json, report)


QUANT_HELP = """Every pair of draft and target precisions: bytes, perplexity, KL and acceptance (no timings).

Example: specdec bench quant --json build/quant_grid.json"""


@app.command("quant", help=QUANT_HELP)
def quant(
    json: Json = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="4 and 16 bits, one prompt per class, no studies: a smoke test.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file or a folder of them; default: the kit's own.")
    ] = None,
    target: Target = "smollm2-135m",
    draft: Annotated[str, typer.Option(help="Draft model: a name or a folder.")] = "draft",
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Run the quantization benchmark."""
    check_writable(json)
    import sys

    from specdec_ref.bench.quant import Settings, print_report, run_quant
    from specdec_ref.prompts import load_prompts

    settings = Settings(target=target, draft=draft, seed=seed)
    if quick:
        settings = Settings(
            target, draft, (4, 16), (4, 16), per_class=1, new_tokens=24, held_out=2, studies=False, seed=seed
        )
    report = header(seed) | run_quant(
        load_prompts(prompts), settings, lambda text: print(text, file=sys.stderr, flush=True)
    )
    print_report(report)
    if json is not None:
        write_json(json, report)


NATIVE_HELP = """Exported models in the native runtime: plain, speculative and gated decoding at each precision, and v(K).

Needs the runtime: `make native`.

Example: specdec bench native --json build/bench_native.json"""


@app.command("native", help=NATIVE_HELP)
def native(
    json: Json = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One prompt per class, 32 tokens: a smoke test.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file or a folder of them; default: the kit's own.")
    ] = None,
    target: Annotated[
        str, typer.Option(help="Target model: target, a name, a folder, or a hub id.")
    ] = "target",
    draft: Annotated[str, typer.Option(help="Draft model: draft, a name, a folder, or a hub id.")] = "draft",
    precision: Annotated[
        list[str] | None, typer.Option(help="fp32, int8 or int4; may be given again. Default: all three.")
    ] = None,
    lookahead: Annotated[int, typer.Option(min=1, max=8, help="K.")] = 4,
    threads: Annotated[int, typer.Option(min=1, help="Threads that ExecuTorch computes with.")] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
) -> None:
    """Run the native benchmark."""
    check_writable(json)
    from specdec_ref.bench.native import Settings, print_report, run_native
    from specdec_ref.prompts import load_prompts

    settings = Settings(
        target=target,
        draft=draft,
        precisions=tuple(precision or ("fp32", "int8", "int4")),
        lookahead=lookahead,
        threads=threads,
        max_new_tokens=32 if quick else max_new_tokens,
        per_class=1 if quick else None,
        passes=5 if quick else 30,
    )
    report = header(0) | run_native(load_prompts(prompts), settings)
    print_report(report)
    if json is not None:
        write_json(json, report)
