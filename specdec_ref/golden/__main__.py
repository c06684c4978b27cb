"""Command line of the golden vectors; see `python -m specdec_ref.golden --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from specdec_ref import paths
from specdec_ref.errors import SpecdecError
from specdec_ref.golden import generate, nano_files

_EPILOG = """examples:
  python -m specdec_ref.golden               make assets/golden anew; unchanged files keep their bytes
  python -m specdec_ref.golden --check       change nothing; exit 1 naming the first difference
  python -m specdec_ref.golden nano          train the nano pair anew (then make the vectors anew)
  python -m specdec_ref.golden nano --check  train it and compare with the committed weights
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_ref.golden",
        description="Make or check the golden vectors that every language's tests read.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what", nargs="?", choices=("vectors", "nano"), default="vectors", help="default: vectors"
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument(
        "--out", type=Path, help="folder to write to or check; default: assets/golden or assets/models"
    )
    parser.add_argument("--models", type=Path, help="folder that holds the nano pair; default: assets/models")
    options = parser.parse_args(arguments)
    try:
        return _nano(options) if options.what == "nano" else _vectors(options)
    except SpecdecError as error:
        print(f"golden: {error}", file=sys.stderr)
        return 1


def _vectors(options: argparse.Namespace) -> int:
    golden = paths.assets() / "golden"
    out, models = options.out or golden, options.models or paths.assets() / "models"
    schema = golden / generate.SCHEMA
    if options.check:
        files, cases = generate.check(out, models, schema)
        print(f"golden: {files} files with {cases} cases are up to date")
        return 0
    written = generate.generate(out, models, schema)
    print(f"golden: wrote {', '.join(written)}" if written else "golden: nothing changed")
    return 0


def _nano(options: argparse.Namespace) -> int:
    models, start = options.out or paths.assets() / "models", time.perf_counter()
    hashes = nano_files.make_pair(models, check=options.check)
    verb = "are the committed ones" if options.check else f"written to {models}"
    print(f"golden: {' and '.join(hashes)} {verb} ({time.perf_counter() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
