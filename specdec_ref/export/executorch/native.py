"""The C++ runtime as a child process: a .pte run pass by pass, or decoded with by the core's engine.

The programs are `assets/runtime/executorch/tools`; `make native` builds them. They speak JSON, a line each way, so that
nothing of the runtime (its threads, its kernels) is in this process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import torch
from torch import Tensor

from specdec_ref.errors import SpecdecError


class NativeError(SpecdecError):
    """The runtime refused a request.

    Attributes:
        status: a `specdec_status` of `specdec.h`; 0 if the program itself ended.
    """

    def __init__(self, what: str, *, status: int, where: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, fix=fix)
        self.status = status


def cmake_folder() -> Path:
    """Folder of the CMake configuration in the installed `executorch` package.

    Raises:
        SpecdecError: the package is not installed.
    """
    spec = importlib.util.find_spec("executorch")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(folder) / "share" / "cmake").is_dir():
            return Path(folder) / "share" / "cmake"
    raise SpecdecError("the package `executorch` is not installed", fix="make setup")


def tool(name: str) -> Path:
    """A built program: in the folder `SPECDEC_NATIVE`, else in `build/native/executorch` of the repository.

    Raises:
        SpecdecError: it was not built.
    """
    repository = Path(__file__).resolve().parents[3]
    folder = Path(os.environ.get("SPECDEC_NATIVE") or repository / "build" / "native" / "executorch")
    if not (folder / name).is_file():
        raise SpecdecError(
            "the native runtime is not built", where=str(folder / name), fix="run `make native`"
        )
    return folder / name


class Native:
    """A child process that answers each line with a line of JSON. A context manager.

    Args:
        name: of the program.
        arguments: of its command line.
    """

    def __init__(self, name: str, *arguments: str | Path) -> None:
        self._where = str(arguments[0]) if arguments else name
        self._process = subprocess.Popen(
            [str(tool(name)), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rss_bytes(self) -> int:
        """Memory that the process holds in RAM, mapped files included."""
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def ask(self, line: str) -> dict[str, Any]:
        """Send one line and return the answer.

        Raises:
            NativeError: the program refused it, or ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # its last words are still to be read
        answer = self._process.stdout.readline()
        if not answer:
            code = self._process.wait()
            raise NativeError(f"the runtime ended with exit status {code}", status=0, where=self._where)
        parsed = json.loads(answer)
        if "error" in parsed:
            raise NativeError(str(parsed["error"]), status=int(parsed["status"]))
        return dict(parsed)


class Pte(Native):
    """A .pte on a KV pool of its own: `specdec_pte`.

    Args:
        path: the file.
        context: capacity of the pool in tokens.
        threads: that ExecuTorch computes with.

    Raises:
        NativeError: the file is missing, damaged, or not of this kit's making.
    """

    def __init__(self, path: Path, *, context: int = 2048, threads: int = 1) -> None:
        tool("specdec_pte")  # before there is anything to clean up
        self._folder = tempfile.TemporaryDirectory(prefix="specdec-pte-")
        logits = Path(self._folder.name) / "logits.f32"
        super().__init__(
            "specdec_pte", path, "--context", str(context), "--threads", str(threads), "--logits", logits
        )
        try:
            self.info = self.ask("info")
        except BaseException:
            self.close()
            raise
        self.metadata: dict[str, Any] = self.info["metadata"]
        self._logits = logits.open("rb")

    def close(self) -> None:
        super().close()
        if hasattr(self, "_logits"):
            self._logits.close()
        self._folder.cleanup()

    def forward(self, tokens: Sequence[int]) -> Tensor:
        """Append T tokens and return their logits [T, head rows]."""
        self.ask("forward " + " ".join(map(str, tokens)))
        return self._written().view(len(tokens), -1)

    def cache(self) -> tuple[Tensor, Tensor]:
        """Keys and values [layers, G, L, E] as they lie in the pool."""
        self.ask("cache")
        m = self.metadata
        both = self._written().view(2, m["layers"], m["kv_heads"], -1, m["head_dim"])
        return both[0], both[1]

    def _written(self) -> Tensor:
        return torch.frombuffer(bytearray(self._logits.read()), dtype=torch.float32)

    def prefill(self, tokens: Sequence[int]) -> None:
        """Append tokens whose logits nobody needs."""
        self.ask("prefill " + " ".join(map(str, tokens)))

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        self.ask(f"truncate {length}")

    def reset(self) -> None:
        """Forget everything, also a failed pass."""
        self.ask("reset")

    def times(self, tokens: int, *, at: int, passes: int) -> list[float]:
        """Milliseconds of each of `passes` passes over so many tokens after `at` others."""
        return [float(ms) for ms in self.ask(f"time {tokens} {at} {passes}")["ms"]]


class Decoder(Native):
    """The core's engine on exported models: `specdec_native`.

    Args:
        target: the target's .pte.
        draft: the draft's .pte, "lookup" or "none".
        lookahead: K.
        gate: whether a break-even gate turns speculation off where it does not pay.
        context: capacity of each cache.
        threads: that ExecuTorch computes with.
    """

    def __init__(
        self,
        target: Path,
        draft: Path | str = "none",
        *,
        lookahead: int = 4,
        gate: bool = False,
        context: int = 2048,
        threads: int = 1,
    ) -> None:
        options = ["--draft", draft, "--lookahead", str(lookahead), "--context", str(context)]
        super().__init__(
            "specdec_native", target, *options, "--threads", str(threads), *(["--gate"] if gate else [])
        )

    def generate(self, prompt: Sequence[int], **request: Any) -> dict[str, Any]:
        """Decode after a prompt; keywords are the keys that `specdec_native` reads (`max_new_tokens`, `eos_ids`, …)."""
        return self.ask(json.dumps({"prompt": [*prompt], **request}))
