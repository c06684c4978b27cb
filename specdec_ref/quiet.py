"""Silences what libraries say about how they were built: it is not the user's doing, and hides what is."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator

_DEPRECATIONS = (DeprecationWarning, FutureWarning, PendingDeprecationWarning)
_NOISY_LOGGERS = (
    "transformers",
    "torchao",
    "torch.utils._pytree",
    "coremltools",
    "executorch",
    "matplotlib",
    "httpx",
    "huggingface_hub",
)


def silence_libraries() -> None:
    """Call before the first import of transformers, torchao or coremltools; may be called again."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for category in _DEPRECATIONS:
        warnings.filterwarnings("ignore", category=category)
    warnings.filterwarnings(
        "ignore", message=r".*(torchao|cpp extensions|coremltools|scikit-learn version|Torch version).*"
    )
    warnings.filterwarnings("ignore", message=r".*IProgress not found.*")
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """`silence_libraries` for the exporters' own chatter too: warnings and log lines below an error, within the block."""
    silence_libraries()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
