"""`python -m specdec_ref.cli` is the `specdec` command."""

from specdec_ref.cli import main

main()
