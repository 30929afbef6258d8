"""Compiles C libraries on this machine, each once, into the cache: `child/*.c`, for the machine's
processor, and stubs of two others.

sgl-kernel 0.3.21 (`sm100/common_ops`, what it loads without a GPU) links libcuda.so.1 and
libnuma.so.1, which may be missing, but calls neither on a CPU, so a library with the same symbols
is enough for the import.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from _inf.errors import ConfigError
from _inf.runtime import quiet

_NAMES = "vectors.h", "kernels.c", "products.c", "attention.c", "draws.c", "adapters.c"
_FOLDER = Path(__file__).with_name("child")
SOURCES = [_FOLDER / name for name in _NAMES]
KERNELS = "kernels.so"
# With errno and traps, which nobody reads, gcc vectorizes no loop with an exponential.
_NO_TRAPS = "-fno-math-errno", "-fno-trapping-math"
_OPTIONS = ("-O3", "-march=native", "-fopenmp", *_NO_TRAPS, "-shared", "-fPIC")
_SECONDS = 120
_LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
_OF_A_PROCESSOR = ("vendor_id", "model name", "flags")  # lines of /proc/cpuinfo


@dataclass(frozen=True)
class Library:
    """A library's file name, the symbols that sgl-kernel needs, and what each function returns."""

    soname: str
    symbols: str
    answer: int
    symbol_version: str = ""


CUDA = Library(
    "libcuda.so.1",
    "cuGetErrorString cuMemAddressFree cuMemGetAddressRange_v2 cuMemRelease cuMemSetAccess "
    "cuMemRetainAllocationHandle cuMemUnmap cuPointerGetAttribute",
    answer=100,  # CUDA_ERROR_NO_DEVICE
)
NUMA = Library(
    "libnuma.so.1",
    "copy_nodemask_to_bitmask numa_allocate_nodemask numa_bind numa_bitmask_clearall "
    "numa_bitmask_free numa_num_configured_nodes",
    answer=-1,
    symbol_version="libnuma_1.2",
)
LIBRARIES = {library.soname: library for library in (CUDA, NUMA)}


def c_compiler() -> str | None:
    """The path of a C compiler: `CC`, or the first one on PATH."""
    named = filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))
    return next(filter(None, map(shutil.which, named)), None)


def load_stubs() -> list[str]:
    """Load the stubs of those of `LIBRARIES` that are missing, for what is imported later in this
    process; return their names."""
    missing = []
    for soname, library in LIBRARIES.items():
        try:
            ctypes.CDLL(soname)
        except OSError:
            ctypes.CDLL(str(stub(library)), mode=ctypes.RTLD_GLOBAL)
            missing.append(soname)
    return missing


def stub(library: Library) -> Path:
    """Return the stub's path; compile it if it does not exist yet."""
    from _inf.models.cache import build_once  # `check_pins` runs where nothing is installed

    build = functools.partial(_compile_stub, library)
    return build_once(f"stub-{_key(library)}", build) / library.soname


def _compile_stub(library: Library, folder: Path) -> None:
    if (compiler := c_compiler()) is None:
        raise ConfigError(
            f"device: this machine has no {library.soname}, so a stub of it must be compiled, "
            "and there is no C compiler (cc, gcc or clang) on PATH; install one"
        )
    code, script = folder / "stub.c", folder / "versions"
    names = library.symbols.split()
    code.write_text("".join(f"int {n}(void) {{ return {library.answer}; }}\n" for n in names))
    script.write_text(f"{library.symbol_version} {{ global: *; }};\n")
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / library.soname), str(code)]
    command += [f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={script}"]
    if failure := _failure(command):
        raise ConfigError(
            f"device: {compiler} could not build a stub of {library.soname}; "
            f"check that it can link a shared library. It said: {failure}"
        )


def _key(*made_of: object) -> str:
    return hashlib.blake2b(repr(made_of).encode(), digest_size=12).hexdigest()


def kernel_library() -> Path | None:
    """Return the library's path; None, with a warning, where it cannot be compiled or loaded."""
    from _inf.models.cache import build_once  # `check_pins` runs where nothing is installed

    try:
        # Only gcc: its OpenMP runtime is the one that PyTorch has loaded, and shares its threads.
        if (compiler := shutil.which("gcc")) is None:
            raise ConfigError("there is no gcc on PATH")
        sources = [source.read_bytes() for source in SOURCES]
        key = _key(sources, compiler, _OPTIONS, _processor())
        build = functools.partial(_compile_kernels, compiler)
        library = build_once(f"kernels-{key}", build) / KERNELS
        _check_loads(library)
        return library
    except ConfigError as error:
        quiet.warn(
            f"compiled_kernels: {error}; so PyTorch's operators compute the layers, which is "
            "slower. Set compiled_kernels: false to do so without this warning."
        )
        return None


def _compile_kernels(compiler: str, folder: Path) -> None:
    sources = [str(source) for source in SOURCES if source.suffix == ".c"]
    files = ["-I", str(_FOLDER), "-o", str(folder / KERNELS), *sources]
    command = [compiler, *_OPTIONS, *files, "-lm"]
    if failure := _failure(command):
        raise ConfigError(f"{compiler} could not compile {shlex.join(sources)}; it said: {failure}")


def _check_loads(library: Path) -> None:
    """In a process of its own: a damaged file may end the one that loads it."""
    if failure := _failure([sys.executable, "-I", "-S", "-c", _LOAD, str(library)]):
        raise ConfigError(
            f"{library} cannot be loaded ({failure}). Delete its folder to compile it again; if "
            "the cache is mounted noexec, set XDG_CACHE_HOME to a folder that is not"
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
