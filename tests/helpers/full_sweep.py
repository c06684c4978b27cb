"""The option `--full-sweep`: imported by `tests/conftest.py`, or given with `-p tests.helpers.full_sweep`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full-sweep",
        action="store_true",
        help="compare both decoding loops on the real model for every K, drafter and prompt, 128 tokens each (hours)",
    )
