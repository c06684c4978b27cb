"""`specdec check …`: an exported artefact, run here, against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run an exported model here and compare it with the reference.", no_args_is_help=True)

EXECUTORCH_HELP = """Run a .pte through the native runtime at T = 1, 2, K + 1 and prompt length, and compare its logits.

Needs the runtime: `make native`.

Example: specdec check executorch build/target-int4.pte --full"""


@app.command("executorch", help=EXECUTORCH_HELP)
def executorch(
    path: Annotated[Path, typer.Argument(help="The .pte to check.", dir_okay=False)],
    full: Annotated[
        bool, typer.Option("--full", help="Every T from 1 to 17, a long prompt, and 300 steps in a row.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads that ExecuTorch computes with.")] = 1,
) -> None:
    """Check a .pte."""
    from specdec_ref.cli.check_executorch import run

    run(path, full=full, threads=threads)
