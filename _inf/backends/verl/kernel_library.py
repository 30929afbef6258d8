"""Compiles `child/kernels.c` for this machine's processor, once: the library stays in the cache."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from _inf.errors import ConfigError
from _inf.models.cache import build_once
from _inf.runtime import quiet

SOURCE = Path(__file__).with_name("child") / "kernels.c"
NAME = "kernels.so"
_OPTIONS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC")
_COMPILE_SECONDS = 120
_OF_A_PROCESSOR = ("vendor_id", "model name", "flags")  # lines of /proc/cpuinfo


def kernel_library() -> Path | None:
    """Return the library's path; None, with a warning, where it cannot be compiled."""
    try:
        if (compiler := _gcc()) is None:
            raise ConfigError("there is no gcc on PATH")
        made_of = SOURCE.read_bytes(), compiler, _OPTIONS, _processor()
        key = hashlib.blake2b(repr(made_of).encode(), digest_size=12).hexdigest()
        return build_once(f"kernels-{key}", functools.partial(_compile, compiler)) / NAME
    except ConfigError as error:
        quiet.warn(
            f"compiled_kernels: {error}; so PyTorch's operators compute what is between two "
            "matrix products, which is slower. Set compiled_kernels: false if that is meant."
        )
        return None


def _gcc() -> str | None:
    """Only gcc: its OpenMP runtime is the one that PyTorch has loaded, and shares its threads."""
    named = os.environ.get("CC", "")
    return shutil.which(named if "gcc" in Path(named).name else "gcc")


def _compile(compiler: str, folder: Path) -> None:
    command = [compiler, *_OPTIONS, "-o", str(folder / NAME), str(SOURCE), "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{compiler} took over {_COMPILE_SECONDS} s") from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["nothing"]
        raise ConfigError(f"{compiler} could not compile {SOURCE}; it said: {said[-1]}")


def _processor() -> list[str]:
    """What `-march=native` depends on: a cache may be shared by machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return sorted({line for line in lines if line.startswith(_OF_A_PROCESSOR)})
