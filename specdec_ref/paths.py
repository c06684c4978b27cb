"""Where the kit keeps things: downloads in the user's cache, its own files beside the package."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from specdec_ref.errors import SpecdecError


def home() -> Path:
    """Folder of downloads and caches: `SPECDEC_HOME`, or `specdec` in the user's cache folder. It may not exist."""
    chosen = os.environ.get("SPECDEC_HOME")
    return (
        Path(chosen).expanduser().absolute()
        if chosen
        else platformdirs.user_cache_path("specdec", appauthor=False)
    )


def assets() -> Path:
    """The repository's `assets/` folder: committed models, prompts, golden vectors and runtime sources.

    Raises:
        SpecdecError: the package was copied out of its repository, so there is no such folder beside it.
    """
    folder = Path(__file__).resolve().parent.parent / "assets"
    if not folder.is_dir():
        raise SpecdecError(
            "the kit's assets are not beside the package",
            where=str(folder),
            fix="install from a clone of the repository with `pip install -e .`",
        )
    return folder
