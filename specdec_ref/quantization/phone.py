"""Phone-scale files made for real: `python -m specdec_ref.quantization.phone` writes one and prints its bytes and peak memory.

A process of its own, because peak memory is a property of a process.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from specdec_ref.errors import SpecdecError
from specdec_ref.quantization.convert import quantize_to_file
from specdec_ref.quantization.expand import DRAFT_250M, TARGET_1_7B, expanded
from specdec_ref.quantization.file import QuantizedFile
from specdec_ref.quantization.recipe import recipe
from specdec_ref.quantization.source import open_source
from specdec_ref.quantization.tensors import tensor_shapes

ROLES = {"draft": ("draft", DRAFT_250M), "target": ("smollm2-135m", TARGET_1_7B)}


def make(role: str, bits: int, embedding_bits: int, folder: Path) -> dict[str, Any]:
    """Quantize the expansion of a role's default model and describe the file, which is left in `folder`."""
    import psutil

    name, shape = ROLES[role]
    large = expanded(open_source(name), shape)
    report = quantize_to_file(
        large, recipe("rtn", bits, embedding_bits=embedding_bits), folder / f"{role}-{bits}"
    )
    parameters = sum(math.prod(shape) for shape in tensor_shapes(large.config).values())
    return {
        "role": role,
        "bits": bits,
        "embedding_bits": embedding_bits,
        "parameters": parameters,
        "file_bytes": report.file_bytes,
        "resident_bytes": QuantizedFile(report.path, seal=False).resident_bytes,
        "peak_rss_bytes": peak_rss(psutil.Process()),
    }


def peak_rss(process: Any) -> int:
    """Most memory this process has held, in bytes."""
    if sys.platform == "win32":
        return int(process.memory_info().peak_wset)
    try:  # `ru_maxrss` survives exec on Linux: a child of a large parent would be charged with the parent's peak
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(role: str, bits: int, embedding_bits: int, folder: Path | None = None) -> dict[str, Any]:
    """`make` in a process of its own, the file deleted afterwards.

    Raises:
        SpecdecError: it failed; the message is its own.
    """
    with tempfile.TemporaryDirectory(prefix="specdec-", dir=folder) as made:
        command = [sys.executable, "-m", __name__, role, str(bits), str(embedding_bits), made]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SpecdecError(f"phone-scale {role} failed: {(done.stderr.strip() or '?').splitlines()[-1]}")
        found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    _role, _bits, _embedding, _folder = sys.argv[1:]
    print(json.dumps(make(_role, int(_bits), int(_embedding), Path(_folder))))
