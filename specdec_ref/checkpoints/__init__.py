"""Where models come from: the embedded default, the drafts in this repository, a local folder, or the hub.

All four end as an ordinary folder (safetensors, `config.json`, `tokenizer.json`), which one piece of code loads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from specdec_ref import paths
from specdec_ref.checkpoints import embedded, hub
from specdec_ref.checkpoints.config import parse_config, token_ids
from specdec_ref.checkpoints.embedded import EMBEDDED
from specdec_ref.checkpoints.folder import FolderTensors, check_head_ids
from specdec_ref.checkpoints.pair import check_same_tokenizer
from specdec_ref.errors import CheckpointError, UsageError
from specdec_ref.feature_draft import MODEL_TYPE as FEATURE_DRAFT
from specdec_ref.files import read_json
from specdec_ref.model import Decoder
from specdec_ref.tokenizer import Tokenizer

__all__ = [
    "DEFAULT_DRAFT",
    "EMBEDDED",
    "LoadedModel",
    "check_same_tokenizer",
    "fetch",
    "gguf",
    "load",
    "names",
]

DEFAULT_DRAFT = "draft-320x4"
"""The folder under `assets/models` that the name "draft" stands for."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class LoadedModel:
    """A model with what belongs to it.

    Attributes:
        model: the decoder, frozen, in the dtype asked for.
        tokenizer: None where the folder has none (a draft shares its target's).
        eos_ids: tokens that end an answer; empty where the model names none.
        bos_id: token that begins a text, if the model names one.
        name: short name for tables.
        source: where it came from, in words.
        folder: the files it was loaded from.
    """

    model: Decoder
    tokenizer: Tokenizer | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    name: str
    source: str
    folder: Path
    specdec: dict[str, Any] = field(default_factory=dict)
    """The `specdec` section of config.json: what this kit notes about a draft (head rows, target, tokenizer)."""

    @property
    def tokenizer_sha256(self) -> str | None:
        """Fingerprint of the tokenizer that the model's ids belong to; None where nothing is known of it."""
        return (
            self.tokenizer.fingerprint if self.tokenizer is not None else self.specdec.get("tokenizer_sha256")
        )


def names() -> list[str]:
    """Names that `load` knows without a path or hub id."""
    return [*EMBEDDED, "draft", *sorted(_committed())]


def fetch(name: str, *, quiet: bool = False) -> Path:
    """Bring a model onto this machine and return its folder; nothing is downloaded twice.

    Args:
        name: as for `load`. For a hub id a newer version is looked for.
        quiet: show no progress for embedded models.

    Raises:
        CheckpointError: it cannot be had; the message says why and what to do.
    """
    return _find(name, refresh=True, quiet=quiet)[0]


def gguf(name: str = "smollm2-135m", *, quiet: bool = False) -> Path:
    """Return the original GGUF file of an embedded model, for programs that read that format.

    Raises:
        CheckpointError: it cannot be had.
        UsageError: no embedded model has that name.
    """
    if name not in EMBEDDED:
        raise UsageError(f"no embedded model is called {name!r}", fix=f"there are: {', '.join(EMBEDDED)}")
    return embedded.gguf(EMBEDDED[name], quiet=quiet)


def load(name_or_path: str | Path, dtype: torch.dtype = torch.float32, *, quiet: bool = False) -> LoadedModel:
    """Load a model of the Llama, Qwen2 or Qwen3 family.

    Args:
        name_or_path: "smollm2-135m" (the default target, fetched on first use), "draft" or another folder's name under
            `assets/models`, the path of a folder or of a file made by `specdec quantize`, or a hub id as
            `organisation/model`. Names win; write `./draft` for a folder of that name.
        dtype: type of weights and activations: float32, float64, bfloat16 or float16.
        quiet: show no progress if it has to be fetched.

    Raises:
        CheckpointError: it cannot be found, is damaged, or needs arithmetic that is not here.
        UsageError: another `dtype`.
    """
    if dtype not in _DTYPES:
        raise UsageError(
            f"cannot compute in {dtype}", where="dtype", fix="use float32, float64, bfloat16 or float16"
        )
    if str(name_or_path) not in names() and Path(name_or_path).expanduser().is_file():
        from specdec_ref.quantization.file import QuantizedFile

        packed = QuantizedFile(Path(name_or_path).expanduser().absolute())
        with packed.companions() as folder:
            return _assemble(packed, folder, packed.path, packed.path.stem, dtype)
    folder, name = _find(name_or_path, refresh=False, quiet=quiet)
    return _assemble(None, folder, folder, name, dtype)


def _assemble(
    tensors: FolderTensors | None, folder: Path, shown: Path, name: str, dtype: torch.dtype
) -> LoadedModel:
    """Build a model from its tensors (default: the folder's) and settings; `shown` is what the user knows as its place."""
    where = str(shown)
    raw = read_json(folder / "config.json")
    if raw.get("model_type") == FEATURE_DRAFT:
        raise CheckpointError(
            "this draft reads its target's hidden states: it is no model of its own",
            where=where,
            fix="give it as the draft of the target it was trained with",
        )
    config = parse_config(raw, where=str(folder / "config.json") if shown == folder else where)
    tensors = FolderTensors(folder) if tensors is None else tensors
    check_head_ids(tensors, config, where=where)
    model = Decoder(config).to(dtype).load_weights(tensors, where=where).eval()
    tensors.check_all_used(config)
    tokenizer = Tokenizer.from_folder(folder) if _has_tokenizer(folder) else None
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {config.vocab_size}",
            where=where,
            fix="tokenizer.json and config.json are not of the same model",
        )
    eos_ids, bos_id = _special_ids(folder, raw, tokenizer)
    section = raw.get("specdec")
    return LoadedModel(
        model,
        tokenizer,
        eos_ids,
        bos_id,
        name,
        _source(folder) if shown == folder else f"quantized file {shown.name}",
        folder if shown == folder else shown.parent,
        section if isinstance(section, dict) else {},
    )


def _find(name_or_path: str | Path, *, refresh: bool, quiet: bool) -> tuple[Path, str]:
    """Resolve a name to (folder, short name), fetching it if it can be fetched."""
    name = str(name_or_path)
    if name in EMBEDDED:
        return embedded.fetch(EMBEDDED[name], quiet=quiet), name
    if name == "draft":
        return paths.assets() / "models" / DEFAULT_DRAFT, DEFAULT_DRAFT
    committed = _committed()
    if name in committed:
        return committed[name], name
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        return folder.absolute(), folder.absolute().name
    if not isinstance(name_or_path, Path) and hub.is_plausible(name):
        return hub.fetch(name, refresh=refresh), name
    raise CheckpointError(
        "no such model: neither a known name, nor a folder, nor a hub id like organisation/model",
        where=name or "(empty name)",
        fix=f"known names: {', '.join(names())}",
    )


def local_folder(name_or_path: str | Path) -> Path | None:
    """The folder that a committed model's name or a path stands for; None where `load` would have to fetch."""
    name = str(name_or_path)
    committed = _committed()
    if name == "draft":
        return committed.get(DEFAULT_DRAFT)
    folder = Path(name).expanduser()
    return committed.get(name) or (folder.absolute() if name and folder.is_dir() else None)


def _committed() -> dict[str, Path]:
    models = Path(__file__).resolve().parents[2] / "assets" / "models"
    return {file.parent.name: file.parent for file in models.glob("*/config.json")}


def _has_tokenizer(folder: Path) -> bool:
    return any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
    )


def _special_ids(
    folder: Path, raw: dict[str, Any], tokenizer: Tokenizer | None
) -> tuple[tuple[int, ...], int | None]:
    """End and beginning of text: generation_config.json before config.json, and the tokenizer fills the gaps."""
    generation = folder / "generation_config.json"
    settings = [read_json(generation)] if generation.is_file() else []
    eos: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    for section in [*settings, raw]:
        eos = eos or token_ids(section.get("eos_token_id"), where=str(folder))
        bos = bos or token_ids(section.get("bos_token_id"), where=str(folder))
    if tokenizer is not None:
        eos = eos or token_ids(tokenizer.eos_id, where=str(folder))
        bos = bos or token_ids(tokenizer.bos_id, where=str(folder))
    return eos, bos[0] if bos else None


def _source(folder: Path) -> str:
    try:
        return str(json.loads((folder / "provenance.json").read_text(encoding="utf-8"))["source"])
    except (OSError, ValueError, KeyError, TypeError):
        committed = folder in _committed().values()
        return f"this repository, assets/models/{folder.name}" if committed else f"local folder {folder}"
