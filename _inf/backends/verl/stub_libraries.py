"""Builds stubs of the two libraries that sgl-kernel links and that may be missing on a machine.

sgl-kernel 0.3.21 (`sm100/common_ops`, what it loads without a GPU) links libcuda.so.1 and
libnuma.so.1 but calls neither on a CPU, so a library with the same symbols is enough for the
import. Next to the real library, a stub must not be on the linker's path.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from _inf.errors import ConfigError


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


def build_stub(folder: Path, library: Library = CUDA) -> Path:
    """Compile the stub into `folder` by an atomic rename, so two processes may do it at once."""
    if (compiler := c_compiler()) is None:
        raise ConfigError(
            f"device: this machine has no {library.soname}, so a stub of it must be compiled, "
            "and there is no C compiler (cc, gcc or clang) on PATH; install one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        code, built, script = (Path(scratch, name) for name in ("stub.c", "built.so", "versions"))
        names = library.symbols.split()
        code.write_text("".join(f"int {n}(void) {{ return {library.answer}; }}\n" for n in names))
        script.write_text(f"{library.symbol_version} {{ global: *; }};\n")
        command = [compiler, "-shared", "-fPIC", "-o", str(built), str(code)]
        command += [f"-Wl,-soname,{library.soname}", f"-Wl,--version-script={script}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise ConfigError(
                f"device: {compiler} could not build a stub of {library.soname}; "
                f"check that it can link a shared library. It said: {done.stderr.strip()}"
            )
        return built.replace(folder / library.soname)


def stub(library: Library) -> Path:
    """Return the stub's path; compile it if it does not exist yet.

    Each library has its own folder: a folder on LD_LIBRARY_PATH for libnuma must not add libcuda.
    """
    folders = [home / library.soname.partition(".")[0] for home in _homes()]
    for folder in folders:
        if (folder / library.soname).is_file():
            return folder / library.soname
    return build_stub(folders[0 if os.access(Path(sys.prefix, "lib"), os.W_OK) else 1], library)


def load(sonames: Iterable[str]) -> None:
    """Load the stubs into this process and put them on the linker's path for child processes."""
    paths = [stub(LIBRARIES[soname]) for soname in sonames]
    for path in paths:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    folders = [*path_without_ours(), *(str(path.parent) for path in paths)]
    if folders:
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders)
    else:
        os.environ.pop("LD_LIBRARY_PATH", None)


def path_without_ours() -> list[str]:
    """LD_LIBRARY_PATH without stub folders, which a parent process may have added."""
    ours = {home.parts[-2:] for home in _homes()}
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [folder for folder in folders if folder and Path(folder).parent.parts[-2:] not in ours]


def _homes() -> list[Path]:
    """The installation's folder, then the user's cache for when the first is not writable."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(sys.prefix, "lib", "inf"), Path(cache, "inf", "lib")]
