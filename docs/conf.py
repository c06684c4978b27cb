"""The site: the executed notebooks as they are stored, and the API of `specdec_ref`. Built offline."""

import shutil
from pathlib import Path

from specdec_ref import __version__

HERE = Path(__file__).parent

project = "On-device speculative decoding"
author = "the specdec_ref authors"
copyright = author
release = __version__

# Sphinx reads only below this folder, and the notebooks belong at the top: build from a copy.
shutil.rmtree(HERE / "_notebooks", ignore_errors=True)
shutil.copytree(
    HERE.parent / "notebooks",
    HERE / "_notebooks",
    ignore=shutil.ignore_patterns("student", "instructor", ".ipynb_checkpoints"),
)

extensions = [
    "myst_nb",
    "sphinx-mathjax-offline",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
nb_execution_mode = "off"  # nbval checks the outputs; the site shows the very same ones
nb_ipywidgets_js = {}  # the widget manager would come from a network; each widget has a static twin
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "sphinx_book_theme"
html_title = project
templates_path: list[str] = []
suppress_warnings = ["mystnb.unknown_mime_type"]
