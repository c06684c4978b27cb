"""The `specdec` command. Each command lives in a file of its own and imports what is heavy only when it runs."""

from __future__ import annotations

import os
import sys

import typer

from specdec_ref.cli import bench, check, demo, distill, doctor, export, fetch, generate, quantize
from specdec_ref.errors import SpecdecError, UsageError

app = typer.Typer(
    name="specdec",
    help="Speculative decoding for phones: the reference, measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("doctor", help=doctor.HELP)(doctor.run)
app.command("fetch", help=fetch.HELP)(fetch.run)
app.command("demo", help=demo.HELP)(demo.run)
app.command("generate", help=generate.HELP)(generate.run)
app.command("quantize", help=quantize.HELP)(quantize.run)
app.add_typer(bench.app, name="bench")
app.add_typer(distill.app, name="distill")
app.add_typer(export.app, name="export")
app.add_typer(check.app, name="check")


def main(command: typer.Typer = app) -> None:
    """Entry point: exit 0 on success, 1 with one line on stderr on failure, 2 on bad use, 130 when interrupted."""
    try:
        command()
    except SpecdecError as error:
        print(f"specdec: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        print("specdec: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader (a pager, head) has gone; say nothing, also not at shutdown
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
