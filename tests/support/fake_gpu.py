"""A machine that looks like one with an H100, for programs that only import and compile.

`driver` builds a library that answers as NVIDIA's does, and `FAKE` is the beginning of a program
in which torch, SGLang and Triton believe in the GPU. No kernel can run there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from _inf.backends.verl.compiled_libraries import CUDA

ROOT = Path(__file__).parents[2]
needs_headers = pytest.mark.skipif(
    not Path(sysconfig.get_path("include"), "Python.h").is_file(),
    reason="a start on a GPU needs Python's headers (the package python3-dev)",
)
DRIVER = """
int cuInit(unsigned flags) {{ return {init}; }}
int cuDriverGetVersion(int *version) {{ *version = {version}; return 0; }}
int cuDeviceGetCount(int *count) {{ *count = {count}; return 0; }}
int cuDeviceGet(int *device, int place) {{ *device = place; return 0; }}
int cuDeviceGetAttribute(int *value, int attribute, int device) {{
    *value = attribute == 75 ? {capability} / 10 : {capability} % 10;
    return 0;
}}
"""
# `prepare` has been called in a process whose LD_LIBRARY_PATH begins with `driver`'s folder.
FAKE = """
import types
import torch, triton
from triton.backends.compiler import GPUTarget

properties = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=80 * 2**30, warp_size=32,
    multi_processor_count=132, regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472,
)
answers = dict(
    is_available=True, device_count=1, current_device=0, get_device_capability=(9, 0),
    get_device_name=properties.name, get_device_properties=properties,
    mem_get_info=(79 * 2**30, 80 * 2**30), is_current_stream_capturing=False, synchronize=None,
)
for name, answer in answers.items():
    setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)

class Driver:
    # Triton's, of a GPU for which it can compile and on which it can start nothing.
    capability = 90
    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)
    def get_current_device(self):
        return self.capability  # Triton keeps what it has compiled by the device
    def get_current_stream(self, device):
        return 0
    def get_active_torch_device(self):
        return torch.device("cuda", 0)
    def map_python_to_cpp_type(self, name):
        return name

triton_driver = Driver()
triton.runtime.driver.set_active(triton_driver)

def hide_toolkit():
    # Nothing finds CUDA's, where this machine has one.
    import os, shutil
    exists, tools = os.path.exists, os.environ["LD_LIBRARY_PATH"].split(":")[0]
    os.path.exists = lambda path: not str(path).startswith("/usr/local/cuda") and exists(path)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        os.environ.pop(name, None)
    for name in ("cc", "gcc", "sh", "which", "ldconfig", "ps", "uname", "ld", "as"):
        if (found := shutil.which(name)) and not exists(os.path.join(tools, name)):
            os.symlink(found, os.path.join(tools, name))
    os.environ["PATH"] = tools
"""


def driver(
    folder: Path, *, init: int = 0, version: int = 12080, count: int = 2, capability: int = 90
) -> str:
    """A folder for LD_LIBRARY_PATH with a libcuda.so.1 that behaves like a real one."""
    source, built = folder / "driver.c", folder / "libcuda.so.1"
    others = "".join(f"int {name}(void) {{ return 0; }}\n" for name in CUDA.symbols.split())
    answers = {"init": init, "version": version, "count": count, "capability": capability}
    source.write_text(DRIVER.format(**answers) + others)
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", built, source]
    subprocess.run(command, check=True, timeout=60)
    return str(folder)


def python(*arguments: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process without the variables that an engine here may have set."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "XDG_CACHE_HOME") if key in os.environ}
    kept["PYTHONPATH"] = f"{path}:{ROOT}" if path else str(ROOT)
    return subprocess.run(
        [sys.executable, *arguments],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )
