"""`specdec doctor`: is everything here, and how fast is this machine?"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from typing import Any

from specdec_ref.cli.options import Json, check_writable, machine, versions, write_json

HELP = """Check environment, versions, memory bandwidth and caches; say what is missing and how to fix it.

Example: specdec doctor --json doctor.json"""

NEEDED = {
    "torch": "pip install -r requirements.txt",
    "transformers": "pip install -r requirements.txt",
    "executorch": "pip install -r requirements.txt (only exports and the native runtime need it)",
    "coremltools": "pip install -r requirements.txt (only Core ML export needs it)",
    "jupyterlab": "pip install -r requirements.txt (only the notebooks need it)",
}


def run(json: Json = None) -> None:
    """Print a table of checks; exit 1 if something that the main job needs is missing."""
    check_writable(json)
    report = examine()
    for check in report["checks"]:
        print(f"{'ok  ' if check['ok'] else 'MISS'} {check['name']:<22} {check['found']}")
        if not check["ok"]:
            print(f"     fix: {check['fix']}")
    if json is not None:
        write_json(json, report)
    if any(not check["ok"] and check["required"] for check in report["checks"]):
        sys.exit(1)


def examine() -> dict[str, Any]:
    """Gather what the JSON file holds; each of its "checks" is {name, ok, found, fix, required}."""
    import torch

    from specdec_ref import linear, paths
    from specdec_ref.speedup import read_bandwidth

    checks: list[dict[str, Any]] = []

    def add(name: str, ok: bool, found: object, fix: str = "", required: bool = False) -> None:
        checks.append({"name": name, "ok": ok, "found": str(found), "fix": fix, "required": required})

    python = sys.version_info
    add(
        "Python",
        (3, 11) <= python[:2] <= (3, 13),
        f"{python.major}.{python.minor}.{python.micro}",
        "use Python 3.11, 3.12 or 3.13",
        required=True,
    )
    found = versions()
    for package, fix in NEEDED.items():
        present = find_spec(package) is not None
        add(
            package,
            present,
            found.get(package, "installed" if present else "not installed"),
            fix,
            package == "torch",
        )
    build = (
        "CPU build"
        if torch.version.cuda is None
        else f"CUDA {torch.version.cuda} build (several GB; a CPU build is enough)"
    )
    add("torch build", True, build)
    add("threads", True, f"{torch.get_num_threads()}, {torch.backends.cpu.get_cpu_capability()}")
    bandwidth = read_bandwidth()
    add("read bandwidth", True, f"{bandwidth / 1e9:.1f} GB/s")
    for tokens in (1, 5):
        linear.fastest_form(torch.float32, tokens)
    for name, form in linear.report().items():
        add(f"product {name}", True, form)
    home = paths.home()
    model = home / "models" / "smollm2-135m"
    add("cache", True, home)
    add("smollm2-135m", (model / "model.safetensors").is_file(), model, "specdec fetch")
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    add("free disk", free > 2e9, f"{free / 1e9:.1f} GB", "free 2 GB, or set SPECDEC_HOME to a larger disk")
    return {
        "machine": machine(),
        "versions": found,
        "bandwidth_gb_s": round(bandwidth / 1e9, 2),
        "linear": linear.report(),
        "checks": checks,
    }
