"""The quantized model file: one safetensors file that holds integers, scales, settings and tokenizer, and loads anywhere.

Metadata (strings, in the header): `format` = "specdec-quantized", `version`, `config` (the model's config.json),
`recipe` (see `Recipe.to_json`), `source` (the model's name), `tokenizer_sha256`.
Tensors: a weight W [out, in] on a grid is `W.codes` (packed, see `packing`), `W.scale` and, if asymmetric, `W.minimum`;
norms and biases are plain; `specdec.file/NAME` is a companion file (tokenizer, chat template), zlib-compressed bytes;
`specdec.sha256` seals the file (see `container`).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec_ref.checkpoints.config import parse_config
from specdec_ref.checkpoints.folder import FolderTensors
from specdec_ref.errors import CheckpointError, SpecdecError
from specdec_ref.quantization.container import SEAL, TYPE_NAMES, check_seal
from specdec_ref.quantization.grid import QuantizedTensor
from specdec_ref.quantization.recipe import CODES, MINIMUM, SCALE, Recipe
from specdec_ref.quantization.tensors import tensor_shapes

FORMAT = "specdec-quantized"
VERSION = "1"
COMPANION = "specdec.file/"
_FIELDS = ("format", "version", "config", "recipe", "source", "tokenizer_sha256")
_LARGEST_COMPANION = 64 << 20


class QuantizedFile(FolderTensors):
    """A quantized model by tensor name: each access reads from the file and dequantizes to float32.

    Opening checks everything that can be wrong before any of it is used: the seal, the settings, and that exactly the
    tensors are there that the settings call for, each of the type and shape they call for.

    Args:
        path: the file.
        seal: compare the contents with the SHA-256 (reads the file once).

    Attributes:
        raw: the model's config.json.
        config: the same, parsed.
        recipe: how it was quantized.
        source: name of the model it was made from.
        tokenizer_sha256: fingerprint of the tokenizer its ids belong to; None if unknown.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, edited, or not a quantized model.
    """

    def __init__(self, path: Path, *, seal: bool = True) -> None:
        self.path = path
        self.folder = path.parent
        self.read: set[str] = set()
        self._files: dict[Path, Any] = {}
        if not path.is_file():
            raise CheckpointError("there is no such file", where=str(path))
        file = self._open(path)
        metadata = self._metadata(file.metadata() or {})
        if seal:
            check_seal(path)
        try:
            self.raw: dict[str, Any] = dict(json.loads(metadata["config"]))
            self.config = parse_config(self.raw, where=str(path))
            self.recipe = Recipe.from_json(json.loads(metadata["recipe"]))
            layout = self.recipe.layout(self.config)
        except (SpecdecError, ValueError, TypeError) as error:
            reason = error.what if isinstance(error, SpecdecError) else f"not JSON ({error})"
            raise self._bad(reason) from error
        self.source = metadata["source"]
        self.tokenizer_sha256 = metadata["tokenizer_sha256"] or None
        self._shapes = tensor_shapes(self.config)
        self._check_tensors(file, layout)
        self._where = dict.fromkeys(self._shapes, path)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._shapes:
            raise KeyError(name)
        self.read.add(name)
        shape = self._shapes[name]
        if self.recipe.scheme_of(name, shape) is not None:
            return self.quantized(name).dequantize()
        return self._tensor(self.path, name)

    def quantized(self, name: str) -> QuantizedTensor:
        """The integers and scales of a weight: what exports take.

        Raises:
            KeyError: no such weight, or it is not quantized.
        """
        shape = self._shapes[name]
        scheme = self.recipe.scheme_of(name, shape)
        if scheme is None:
            raise KeyError(f"{name} is not quantized")
        minimum = None if scheme.symmetric else self._tensor(self.path, name + MINIMUM)
        codes, scale = self._tensor(self.path, name + CODES), self._tensor(self.path, name + SCALE)
        return QuantizedTensor.from_packed(codes, scale, minimum, scheme, shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    @property
    def resident_bytes(self) -> int:
        """Bytes of the weights alone, as they stay in memory: companions, header and seal left out."""
        file = self._open(self.path)
        names = [n for n in file.keys() if not n.startswith(COMPANION) and n != SEAL]  # noqa: SIM118 - not a dict
        return sum(file.get_tensor(name).nbytes for name in names)

    @contextlib.contextmanager
    def companions(self) -> Iterator[Path]:
        """A temporary folder with the companion files and config.json, for code that reads a model folder."""
        file = self._open(self.path)
        with tempfile.TemporaryDirectory(prefix="specdec-") as name:
            folder = Path(name)
            (folder / "config.json").write_text(json.dumps(self.raw), encoding="utf-8")
            for key in file.keys():  # noqa: SIM118 - not a dict
                if key.startswith(COMPANION):
                    data = self._inflate(key, file.get_tensor(key))
                    (folder / Path(key.removeprefix(COMPANION)).name).write_bytes(data)
            yield folder

    def _inflate(self, key: str, tensor: Tensor) -> bytes:
        inflater = zlib.decompressobj()
        try:
            data = inflater.decompress(tensor.numpy().tobytes(), _LARGEST_COMPANION)
        except zlib.error as error:
            raise self._bad(f"{key!r} cannot be decompressed") from error
        if not inflater.eof:
            raise self._bad(f"{key!r} is larger than {_LARGEST_COMPANION >> 20} MiB")
        return data

    def _metadata(self, metadata: dict[str, str]) -> dict[str, str]:
        if metadata.get("format") != FORMAT:
            raise CheckpointError(
                "not a quantized model of this kit",
                where=str(self.path),
                fix="make one with `specdec quantize`, or name a model folder",
            )
        if metadata.get("version") != VERSION:
            raise CheckpointError(
                f"format version {metadata.get('version')!r} is unknown, this is version {VERSION}",
                where=str(self.path),
                fix="quantize the model again with this version of the kit",
            )
        missing = [key for key in _FIELDS if key not in metadata]
        if missing:
            raise self._bad(f"{missing[0]!r} is missing")
        return metadata

    def _check_tensors(self, file: Any, layout: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        names = {n for n in file.keys() if not n.startswith(COMPANION)} - {SEAL}  # noqa: SIM118 - not a dict
        for name in sorted(set(layout) - names):
            raise self._bad(f"tensor {name!r} is missing")
        for name in sorted(names - set(layout)):
            raise self._bad(f"tensor {name!r} is not part of the model that they describe")
        types = {short: dtype for dtype, short in TYPE_NAMES.items()}
        for name, (dtype, shape) in layout.items():
            part = file.get_slice(name)
            found = (types.get(part.get_dtype()), tuple(part.get_shape()))
            if found != (dtype, shape):
                raise self._bad(f"tensor {name!r} is {found[0]} {found[1]}, they call for {dtype} {shape}")

    def _bad(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"its settings cannot be right: {reason}",
            where=str(self.path),
            fix="quantize the model again, or take a sound copy",
        )
