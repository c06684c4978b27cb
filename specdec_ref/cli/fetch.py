"""`specdec fetch`: bring a model onto this machine once."""

from __future__ import annotations

from typing import Annotated

import typer

HELP = """Download and prepare a model; afterwards no network is needed.

Example: specdec fetch smollm2-135m"""


def run(
    name: Annotated[str, typer.Argument(help="An embedded model's name or a hub id.")] = "smollm2-135m",
) -> None:
    """Fetch one model and say where it is."""
    from specdec_ref import checkpoints

    print(f"{name}: ready in {checkpoints.fetch(name)}")
