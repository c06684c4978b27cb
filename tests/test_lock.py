"""The lock is complete, portable and in step with everything that repeats it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements.txt"
ENVIRONMENT = ROOT / "environment.yml"
PLAIN_PIN = re.compile(r"""^[a-z0-9-]+==[0-9][0-9a-z.!]*( ; sys_platform == "darwin")?$""")


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_lock", ROOT / ".ci" / "lock.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pins(lock: ModuleType) -> dict[str, Requirement]:
    requirements = [Requirement(line) for line in lock.read_lock(REQUIREMENTS)]
    return {str(canonicalize_name(requirement.name)): requirement for requirement in requirements}


def faults(line: str) -> list[str]:
    """What is wrong with one line of the lock."""
    found = []
    if "--hash" in line or "sha256:" in line:
        found.append("hash")
    if re.search(r"https?://|file:|@|^-|--index|--find-links|--trusted-host", line):
        found.append("host or option")
    if re.search(r"==[^ ;]*\+", line):
        found.append("local version")
    if "==" not in line.split(";")[0] or "*" in line:
        found.append("not pinned")
    if not found and not PLAIN_PIN.match(line):
        found.append("not a plain pin")
    return found


def test_every_pin_is_exact_and_portable(lock: ModuleType) -> None:
    lines = lock.read_lock(REQUIREMENTS)
    assert len(lines) > 100
    assert {line: faults(line) for line in lines if faults(line)} == {}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("numpy>=2", "not pinned"),
        ("numpy", "not pinned"),
        ("numpy==2.*", "not pinned"),
        ("torch==2.13.0+cpu", "local version"),
        ("numpy==2.4.6 --hash=sha256:00", "hash"),
        ("--index-url https://example.org/simple", "host or option"),
        ("numpy @ https://example.org/numpy.whl", "host or option"),
        ("-e .", "host or option"),
        ('numpy==2.4.6 ; os_name == "nt"', "not a plain pin"),
    ],
)
def test_planted_faults_are_seen(line: str, fault: str) -> None:
    assert fault in faults(line)


def test_no_host_even_in_comments() -> None:
    for path in (REQUIREMENTS, ENVIRONMENT, ROOT / "requirements.in"):
        assert not re.search(r"://|sha256|\.whl\b", path.read_text(encoding="utf-8")), path.name


def test_pins_are_unique_and_sorted(lock: ModuleType) -> None:
    names = [line.split("==")[0] for line in lock.read_lock(REQUIREMENTS)]
    assert names == sorted(set(names))


def test_environment_holds_the_same_lock(lock: ModuleType) -> None:
    text = ENVIRONMENT.read_text(encoding="utf-8")
    lines = lock.read_lock(REQUIREMENTS)
    assert text == lock.render_environment(lines)
    assert text != lock.render_environment(lines[1:])


def test_environment_is_what_conda_expects(pins: dict[str, Requirement]) -> None:
    yaml = pytest.importorskip("yaml")
    environment = yaml.safe_load(ENVIRONMENT.read_text(encoding="utf-8"))
    assert environment["name"] == "specdec"
    assert environment["channels"] == ["conda-forge"]
    python, pip, locked = environment["dependencies"]
    assert (python, pip) == ("python=3.11", "pip")
    assert [str(Requirement(line)) for line in locked["pip"]] == [str(pin) for pin in pins.values()]


def test_every_direct_requirement_is_locked(lock: ModuleType, pins: dict[str, Requirement]) -> None:
    for requirement in lock.read_input(ROOT / "requirements.in"):
        pin = pins[str(canonicalize_name(requirement.name))]
        (version,) = [specifier.version for specifier in pin.specifier]
        assert requirement.specifier.contains(version, prereleases=True), f"{pin} does not meet {requirement}"


def test_run_time_dependencies_are_direct_requirements_and_met(
    lock: ModuleType, pins: dict[str, Requirement]
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    direct = {str(canonicalize_name(r.name)) for r in lock.read_input(ROOT / "requirements.in")}
    for text in project["dependencies"]:
        requirement = Requirement(text)
        name = str(canonicalize_name(requirement.name))
        assert name in direct, f"{name} is missing from requirements.in"
        (version,) = [specifier.version for specifier in pins[name].specifier]
        assert requirement.specifier.contains(version, prereleases=True)


def test_no_cuda_libraries_are_locked(pins: dict[str, Requirement]) -> None:
    assert [name for name in pins if name.startswith(("nvidia-", "cuda-")) or name == "triton"] == []
