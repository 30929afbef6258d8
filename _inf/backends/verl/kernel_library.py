"""Compiles `child/kernels.c` for this machine's processor, once: the library stays in the cache."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from _inf.errors import ConfigError
from _inf.models.cache import build_once
from _inf.runtime import quiet

SOURCE = Path(__file__).with_name("child") / "kernels.c"
NAME = "kernels.so"
_OPTIONS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC")
_SECONDS = 120
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
_OF_A_PROCESSOR = ("vendor_id", "model name", "flags")  # lines of /proc/cpuinfo


def kernel_library() -> Path | None:
    """Return the library's path; None, with a warning, where it cannot be compiled or loaded."""
    try:
        if (compiler := _gcc()) is None:
            raise ConfigError("there is no gcc on PATH")
        made_of = SOURCE.read_bytes(), compiler, _OPTIONS, _processor()
        key = hashlib.blake2b(repr(made_of).encode(), digest_size=12).hexdigest()
        library = build_once(f"kernels-{key}", functools.partial(_compile, compiler)) / NAME
        _check_loads(library)
        return library
    except ConfigError as error:
        quiet.warn(
            f"compiled_kernels: {error}; so PyTorch's operators compute what is between two "
            "matrix products, which is slower. Set compiled_kernels: false if that is meant."
        )
        return None


def _gcc() -> list[str] | None:
    """The gcc in CC with its options, else the one on PATH. Only gcc: its OpenMP runtime is the one
    that PyTorch has loaded, and shares its threads."""
    words: list[str] = []
    with contextlib.suppress(ValueError):  # a quote that is not closed
        words = shlex.split(os.environ.get("CC", ""))
    for index, word in enumerate(words):  # not the first one in "ccache gcc -m64"
        if "gcc" in Path(word).name and (found := shutil.which(word)):
            return [found, *words[index + 1 :]]
    return [found] if (found := shutil.which("gcc")) else None


def _compile(compiler: list[str], folder: Path) -> None:
    command = [*compiler, *_OPTIONS, "-o", str(folder / NAME), str(SOURCE), "-lm"]
    if said := _failure(command):
        raise ConfigError(f"{shlex.join(compiler)} could not compile {SOURCE}; it said: {said}")


def _check_loads(library: Path) -> None:
    """In a process of its own: a damaged file may end the one that loads it."""
    if said := _failure([sys.executable, "-I", "-S", "-c", _LOAD, str(library)]):
        raise ConfigError(
            f"{library} cannot be loaded ({said}). Delete its folder to compile it again; if the "
            "cache is mounted noexec, set XDG_CACHE_HOME to a folder that is not"
        )


def _failure(command: list[str]) -> str | None:
    """None if the command succeeds, else the last line that it wrote."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return str(failure)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"nothing, and ended with {done.returncode}"


def _processor() -> list[str]:
    """What `-march=native` depends on: a cache may be shared by machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return sorted({line for line in lines if line.startswith(_OF_A_PROCESSOR)})
