"""The messages of install.sh, and the lock file. No test here installs the packages."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "cat", "df", "dirname", "mkdir", "rm", "tail", "uname")


@pytest.fixture
def checkout(tmp_path):
    """A folder with install.sh, and a folder `bin` that is the whole PATH."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("install.sh", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(shutil.which(name))
    answers(tools / "cc", "")
    return folder


def program(tool: Path, script: str) -> None:
    tool.unlink(missing_ok=True)
    tool.write_text(f"#!{shutil.which('bash')}\n{script}")
    tool.chmod(0o755)


def answers(tool: Path, text: str) -> None:
    """Replace a program on PATH by one that prints the text."""
    program(tool, f"printf '%s\\n' '{text}'\n")


def install(
    checkout: Path, *options: str, stdout: int = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(checkout / "install.sh"), *options],
        cwd=checkout.parent,  # any folder must do
        env={"HOME": str(checkout.parent), "PATH": str(checkout.parent / "bin"), **variables},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )


def refusal(checkout: Path, *options: str, **variables: str) -> str:
    done = install(checkout, *options, **variables)
    assert done.returncode == 1
    assert done.stderr.startswith("install.sh: ")
    assert not (checkout / ".venv" / "install.log").exists(), "it began before it had checked"
    return done.stderr


def test_help_names_what_is_needed_and_an_unknown_option_is_a_wrong_call(checkout):
    done = install(checkout, "--help")
    assert done.returncode == 0 and not (checkout / ".venv").exists()
    for word in ("--flash-attn", "--hf", "Python 3.10 to 3.12"):
        assert word in done.stdout
    done = install(checkout, "--flash-attention")
    assert done.returncode == 2 and "unknown option '--flash-attention'" in done.stderr


DISK = "Filesystem 1024-blocks Used Available Capacity On\n/dev/x 9000000 1000000 5242880 20% /"
NVCC = "Cuda compilation tools, release 13.0, V13.0.88"


# Programs on PATH and what they print (None: there is none), options, variables, what is said.
@pytest.mark.parametrize(
    ("programs", "options", "variables", "words"),
    [
        ({}, [], {}, ["no Python 3.10, 3.11 or 3.12 was found"]),
        ({}, [], {"PYTHON": "/nowhere/python"}, ["PYTHON is '/nowhere/python'"]),
        ({"cc": None}, [], {}, ["C compiler is missing (cc, gcc or clang)"]),
        ({"uname": "Darwin arm64"}, [], {}, ["this is Darwin arm64"]),
        ({"df": DISK}, [], {"PYTHON": sys.executable}, ["has 5 GB free", "14 GB"]),
        ({}, ["--flash-attn"], {"CUDA_HOME": "/nowhere"}, ["needs nvcc"]),
        ({"nvcc": NVCC}, ["--flash-attn"], {}, ["CUDA 12", "release 13.0"]),
        ({"df": DISK, "cc": None}, ["--hf"], {"PYTHON": sys.executable}, ["5 GB free", "10 GB"]),
        ({}, ["--hf", "--flash-attn"], {}, ["--flash-attn", "cannot be combined with --hf"]),
    ],
)
def test_what_is_missing_is_a_sentence(checkout, programs, options, variables, words):
    for name, text in programs.items():
        tool = checkout.parent / "bin" / name
        answers(tool, text) if text else tool.unlink()
    said = refusal(checkout, *options, **variables)
    assert all(word in said for word in words), said


def test_python_that_does_not_run_is_passed_over(checkout):
    (checkout.parent / "bin" / "python3.11").symlink_to(shutil.which("false"))
    assert "no Python 3.10, 3.11 or 3.12 was found" in refusal(checkout)


SLOW_UV = """\
case "$*" in
    'pip install'*)
        printf 'Downloading torch (858.1MiB)\\n'; read -rt 2.5 <> <(:)
        printf 'Installed 307 packages in 3.50s\\n'; read -rt 2.5 <> <(:); exit 1 ;;
esac
"""


def test_install_says_what_it_does_while_it_takes_long(checkout):
    """In a log by a line now and then, on a terminal by one that is rewritten."""
    script = checkout / "install.sh"
    program(checkout.parent / "bin" / "uv", SLOW_UV)
    script.write_text(script.read_text().replace("beat_seconds=10", "beat_seconds=1"))
    done = install(checkout, PYTHON=sys.executable)
    assert (done.returncode, "could not be installed" in done.stderr) == (1, True)
    beat = r"inf: installing, [1-9] s: Downloading torch \(858\.1MiB\)"
    said = [line for line in done.stdout.splitlines() if "Downloading" in line]
    assert re.fullmatch(beat, said[0]) and len(said) <= 3
    assert "s: Installed 307 packages in 3.50s, compiling them\n" in done.stdout
    assert re.search(r"^inf: installing took \d+ s$", done.stdout, re.M)
    assert "\r" not in done.stdout
    terminal, theirs = os.openpty()
    script.write_text(script.read_text().replace("beat_seconds=1", "beat_seconds=60"))
    install(checkout, stdout=theirs, PYTHON=sys.executable)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's answer where nobody writes any more
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    assert re.search(rf"\r\x1b\[K{beat}(?s:.*)\r\x1b\[K$", shown.decode())


def test_venv_that_is_not_ours_is_left_alone(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").touch()
    assert "not made by install.sh" in refusal(checkout, PYTHON=sys.executable)
    assert (checkout / ".venv" / "precious").exists()


def installed_here() -> bool:
    """Whether this Python is of the .venv that install.sh made here, and not of a link to another,
    which a run would replace."""
    stamp = ROOT / ".venv" / ".inf-installed"
    here = Path(sys.prefix) == ROOT / ".venv" and stamp.exists()
    return here and stamp.read_text().strip() == str(ROOT)


@pytest.mark.skipif(not installed_here(), reason="this is not the .venv that install.sh made")
def test_run_again_it_changes_nothing_and_says_how_to_go_on():
    before = (ROOT / ".venv" / "bin" / "inf").stat().st_mtime_ns
    done = subprocess.run(
        ["bash", str(ROOT / "install.sh")],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "PYTHON"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    versions, _, command = done.stdout.splitlines()[-3:]
    assert "verl 0.6.1, sglang 0.5.9, torch 2.9.1" in versions
    assert '.venv/bin/inf "What is the capital of France?"' in command
    assert (ROOT / ".venv" / "bin" / "inf").stat().st_mtime_ns == before


# The lock


LOCKS = {"requirements.lock": ["verl", "dev"], "requirements-hf.lock": ["dev"]}  # their extras


def locked(lock: str) -> list[tuple[Requirement, int]]:
    """Each requirement of the lock, with the number of its hashes."""
    text = (ROOT / lock).read_text()
    entries = re.split(r"(?<!\\)\n", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    parts = [entry.split("--hash=sha256:") for entry in entries if entry.strip()]
    return [(Requirement(head.strip(" \\\n")), len(hashes)) for head, *hashes in parts]


def wanted(lock: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][extra] for extra in LOCKS[lock]]
    lines = [line for part in (project["dependencies"], *extras) for line in part]
    return [each for each in map(Requirement, lines) if each.name != "inf-engine"]


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_lock_holds_one_version_of_all_that_pyproject_asks_for(python, lock):
    machine = dict(
        python_version=python, python_full_version=f"{python}.9", sys_platform="linux",
        platform_machine="x86_64", implementation_name="cpython",
    )  # fmt: skip
    versions: dict[str, str] = {}
    for requirement, _ in locked(lock):
        if requirement.marker is None or requirement.marker.evaluate(machine):
            name, [exact] = canonicalize_name(requirement.name), requirement.specifier
            assert exact.operator == "==" and name not in versions, f"{name} is there twice"
            versions[name] = exact.version
    for requirement in wanted(lock):
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), (
            requirement
        )


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_names_no_host_and_every_package_has_its_hash(lock):
    text = (ROOT / lock).read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host| @ ", text)
    assert [requirement for requirement, hashes in locked(lock) if not hashes] == []
    assert len(locked(lock)) > 200


def test_environment_without_verl_has_neither_it_nor_sglang():
    names = {
        canonicalize_name(requirement.name) for requirement, _ in locked("requirements-hf.lock")
    }
    assert not names & {"verl", "sglang", "sgl-kernel", "ray", "tensordict"}
    assert not {each.name for each in wanted("requirements-hf.lock")} & {"verl", "sglang", "ray"}
