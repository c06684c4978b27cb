"""Sphinx configuration: the site is made of the executed notebooks, exactly as stored, plus the pages in this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOTEBOOKS = HERE.parent / "notebooks"

# Sphinx reads sources below this folder only, so the stored notebooks are copied in; the copy is never edited.
shutil.rmtree(HERE / "_notebooks", ignore_errors=True)
(HERE / "_notebooks").mkdir()
for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
    shutil.copy2(notebook, HERE / "_notebooks")

project = "specdec_ref"
author = "the specdec_ref contributors"
copyright = "the specdec_ref contributors, Apache-2.0"
extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["_build"]

nb_execution_mode = "off"  # show what nbval checked, run nothing
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3

html_theme = "sphinx_book_theme"
html_title = "On-device speculative decoding"
