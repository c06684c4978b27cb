"""Models by hub id, through `huggingface_hub`: weights in safetensors and small text files, nothing that runs code."""

from __future__ import annotations

import re
from pathlib import Path

from specdec_ref import files
from specdec_ref.errors import CheckpointError

_PLAUSIBLE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_WANTED = ["*.safetensors", "*.json", "*.jinja"]
_UNWANTED = ["*/*"]  # other precisions and formats that some repositories keep in subfolders


def is_plausible(name: str) -> bool:
    """Whether `name` has the form `organisation/model`."""
    return _PLAUSIBLE.fullmatch(name) is not None


def fetch(repo_id: str, *, refresh: bool = False) -> Path:
    """Return the folder of a hub model, from the hub's own cache if it is complete there.

    Args:
        repo_id: `organisation/model`.
        refresh: ask the hub for a newer version even if one is cached (and keep the cached one without a network).

    Raises:
        CheckpointError: not cached and not reachable, no such model, no access, or a full disk.
    """
    from huggingface_hub import constants, errors, snapshot_download

    def snapshot(*, local: bool) -> Path:
        return Path(
            snapshot_download(
                repo_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, local_files_only=local
            )
        )

    try:
        if not refresh:
            try:
                return snapshot(local=True)
            except errors.LocalEntryNotFoundError:
                pass
        with files.storage_errors(Path(constants.HF_HUB_CACHE)):
            return snapshot(local=False)
    except errors.LocalEntryNotFoundError as error:
        raise CheckpointError(
            "not in the cache, and the hub cannot be reached",
            where=repo_id,
            fix="connect to the network once and fetch it, or give a local folder",
        ) from error
    except errors.GatedRepoError as error:
        raise CheckpointError(
            "the hub wants its licence accepted first",
            where=repo_id,
            fix="accept it on the model's page and log in with `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            "the hub has no such public model, and there is no such folder here",
            where=repo_id,
            fix="check the spelling",
        ) from error
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(
            f"the hub refused: {detail}", where=repo_id, fix="try again later, or give a local folder"
        ) from error
