"""What an NVIDIA GPU needs in addition to its driver, and what the log of an engine on it means.

Triton compiles a launcher for its kernels with a C compiler and Python's headers. SGLang 0.5.9 has
most of its own kernels compiled in its wheels; those that it would compile at first use with CUDA's
toolkit are replaced (`gpu_patches` in `child/model_code.py`), and `server_arguments.py` chooses
nothing that needs it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from _inf.backends.verl.compiled_libraries import c_compiler
from _inf.errors import ConfigError

# What the last traceback of a log says, and what it means.
CAUSES = {
    r"nvcc|ninja": "A kernel had to be compiled and could not be: that needs CUDA's toolkit "
    "(nvcc) and ninja on PATH. Leave out the key of rollout.engine_kwargs.sglang that chose the "
    "kernel, or install both.",
    r"failed to dispatch data type": "A kernel does not take the engine's dtype; try "
    "rollout.dtype: bfloat16.",
    r"Python\.h": "Triton compiles with Python's headers, which are not installed (the package "
    "python3-dev).",
    r"no kernel image is available": "A kernel was not compiled for this GPU's generation.",
    r"out of resource: shared memory": "A Triton kernel needs more shared memory than this GPU "
    "has; set rollout.dtype: bfloat16, or another attention_backend.",
    r"CUDA out of memory|OutOfMemoryError": "The GPU's memory is full; lower "
    "rollout.gpu_memory_utilization or rollout.max_num_seqs, or free some memory.",
}


def check_tools() -> None:
    missing = []
    if c_compiler() is None:
        missing.append("a C compiler (the package gcc)")
    if not (headers := Path(sysconfig.get_path("include"), "Python.h")).is_file():
        missing.append(f"Python's headers ({headers}; the package python3-dev)")
    if missing:
        raise ConfigError.of(
            "device",
            f"on a GPU Triton compiles kernels with {' and '.join(missing)}, which is "
            "missing; install it, or use device: cpu",
        )


def set_variables(libcuda: str) -> None:
    """Set what SGLang's and Triton's processes need to find CUDA's libraries. libcuda: the path of
    the driver's."""
    # The memory saver's library is preloaded into the engine's process and needs libcudart, which
    # only pip's package has, in a folder of its own.
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    spec = importlib.util.find_spec("nvidia.cuda_runtime")
    for package in (spec and spec.submodule_search_locations) or ():
        folders.append(str(Path(package, "lib")))
    os.environ["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys(filter(None, folders)))
    # Where the machine has a toolkit, tvm-ffi calls ninja by its name to compile with it; pip has
    # put ninja in the folder of this Python, which need not be on PATH.
    if not shutil.which("ninja"):
        path = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = f"{path}:{sysconfig.get_path('scripts')}"
    # Triton takes gcc or clang without CC, and links libcuda.so, which some machines have only
    # as libcuda.so.1.
    if not (shutil.which("gcc") or shutil.which("clang")):
        os.environ.setdefault("CC", "cc")
    with contextlib.suppress(ConfigError):  # without a cache folder Triton looks for itself
        os.environ.setdefault("TRITON_LIBCUDA_PATH", str(_linkable(Path(libcuda))))


def leave_out_deep_gemm() -> None:
    """Let SGLang 0.5.9 run without DeepGEMM where that asserts at its import that CUDA's toolkit is
    there: `layers/deep_gemm_wrapper/configurer.py` expects an `ImportError`. Call it before SGLang
    is imported. DeepGEMM multiplies fp8 only."""
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("deep_gemm")
    except AssertionError:
        sys.modules["deep_gemm"] = None  # type: ignore[assignment]


def _linkable(libcuda: Path) -> Path:
    """A folder with the driver's library under the names that a linker and a loader ask for."""
    from _inf.models.cache import cache_root

    # One for each place of the library: machines that share the cache may have it elsewhere.
    folder = cache_root() / "libcuda" / str(libcuda.parent).strip("/").replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("libcuda.so", "libcuda.so.1"):
        scratch = folder / f"{name}.{os.getpid()}"
        scratch.symlink_to(libcuda)
        scratch.replace(folder / name)
    return folder


def cause(log: str) -> str:
    """One sentence about a known fault in the last traceback of a GPU engine's log; "" if none."""
    # Only there, because SGLang also logs failures that it can work around.
    _, found, end = log.rpartition("Traceback (most recent call last)")
    matches = (text for pattern, text in CAUSES.items() if found and re.search(pattern, end))
    return next(matches, "")
