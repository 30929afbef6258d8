"""Checks and prepares the process before anything of verl, sglang or torch is imported."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Literal

from _inf.backends.verl import compiled_libraries
from _inf.errors import ConfigError, at_fault
from _inf.runtime import quiet
from _inf.runtime.extras import install_command

# Asked in a process of its own: cuInit freezes CUDA_VISIBLE_DEVICES, and must not precede a fork.
_PROBE = """
import ctypes, json

def devices():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "no NVIDIA driver is installed"
    code = cuda.cuInit(0)
    if code != 0:
        return 0, f"the NVIDIA driver finds no usable device (cuInit answered {code})"
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    if number.value < 12000:
        version = f"{number.value // 1000}.{number.value % 1000 // 10}"
        return 0, f"the NVIDIA driver is for CUDA {version} and torch needs one for 12.0 or newer"
    cuda.cuDeviceGetCount(ctypes.byref(number))
    if not number.value:
        return 0, "the NVIDIA driver counts no device"
    first, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(first), 0)
    for part, attribute in ((major, 75), (minor, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_
        cuda.cuDeviceGetAttribute(ctypes.byref(part), attribute, first)
    if major.value < 8:
        found = f"the GPU has compute capability {major.value}.{minor.value}"
        return 0, found + " and SGLang's kernels are compiled for 8.0 and newer"
    return number.value, ""

count, why = devices()
paths = [line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line]
print(json.dumps({"devices": count, "why_none": why, "libcuda": "".join(paths[:1])}))
"""

Device = Literal["cuda", "cpu"]
# Kernels for GPUs; SGLang (0.5.9) imports them where they are installed, `layers/quantization/
# unquant.py` first, and can do without.
UNUSED_ON_CPU = ("flashinfer",)
TOO_OLD = "compute capability"  # in the reason why a GPU cannot be used

_prepared: Device | None = None
_preparing = threading.Lock()


@dataclass(frozen=True)
class Machine:
    """What the NVIDIA driver reports."""

    devices: int
    why_none: str
    libcuda: str = ""  # the path of the driver's library


def check_pins() -> None:
    """Raise a ConfigError that names every package whose version is not a `==` pin of
    our extra `verl`.

    Reads metadata only. A checkout that is not installed has no metadata, so it passes; everything
    passes under INF_SKIP_PIN_CHECK=1.
    """
    if os.environ.get("INF_SKIP_PIN_CHECK") == "1":
        return
    try:
        requirements = importlib.metadata.requires("inf-engine") or []
    except importlib.metadata.PackageNotFoundError:
        return
    from packaging.requirements import Requirement

    broken: dict[str, str] = {}  # what is wrong, by the pin
    for requirement in map(Requirement, requirements):
        pins = [pin for pin in requirement.specifier if pin.operator == "=="]
        of_verl = requirement.marker and requirement.marker.evaluate({"extra": "verl"})
        if not pins or not of_verl:
            continue
        name, pin = requirement.name, f"{requirement.name}{requirement.specifier}"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            broken[pin] = f"{name} {pins[0].version} is not installed"
            continue
        if not requirement.specifier.contains(version):  # 2.9.1+cu128 is torch 2.9.1
            broken[pin] = f"{name} is {version} and must be {pins[0].version}"
    if broken:
        command = install_command(" ".join(broken))
        raise ConfigError(
            f"environment ({sys.prefix}): {'; '.join(broken.values())}; run `{command}`, "
            "or set INF_SKIP_PIN_CHECK=1 to use versions that were never tested"
        )


@at_fault(key="device")
def prepare(device: Literal["auto", "cuda", "cpu"] = "auto") -> Device:
    """Decide the device, and set what verl, sglang and their children read from `os.environ`.

    "auto" is cuda if the driver shows a usable device. Values set by the user or by torchrun are
    kept. A process has one device: a later call with the same device (or "auto") changes nothing.
    """
    global _prepared
    with _preparing:
        if _prepared is not None:
            if device not in ("auto", _prepared):
                raise ConfigError(
                    f"device: {device!r} was asked for, but this process already runs on "
                    f"{_prepared!r}; use one device per process"
                )
            return _prepared
        machine = probe()
        chosen = _chosen(device, machine)
        if chosen == "cuda":
            from _inf.backends.verl import cuda

            cuda.check_tools()
        compiled_libraries.load_stubs()
        _set_rendezvous()
        _keep_compiled_code_private()
        # Otherwise torch starts up to 32 processes for a few small functions (2.9.1,
        # `_inductor/config.py`), which stay.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        # For `CONTEXT_SLACK`, which no row uses; `launch` enforces the model's own limit.
        os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
        if chosen == "cuda":
            _set_for_cuda(machine.devices)
            cuda.set_variables(machine.libcuda)
        else:
            _set_for_cpu(machine)
        _prepared = chosen
        return chosen


def _chosen(device: str, machine: Machine) -> Device:
    if device == "cuda" and not machine.devices:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r})"
        raise ConfigError(
            f"device: 'cuda' was asked for, but {machine.why_none}{hint}; "
            "use device: cpu, or auto to take what the machine has"
        )
    if device == "auto" and TOO_OLD in machine.why_none:
        quiet.warn(f"device: {machine.why_none}; the CPU is used.")
    return "cuda" if machine.devices and device != "cpu" else "cpu"


def probe() -> Machine:
    """Find out in a new process how many GPUs the driver shows."""
    command = [sys.executable, "-I", "-S", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        raise ConfigError.of(
            "device", "the NVIDIA driver did not answer within 120 s; see what nvidia-smi says"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ConfigError(
            f"device: looking for a GPU ended with exit code {done.returncode} ({last}); "
            "see what nvidia-smi says, or hide the GPU with CUDA_VISIBLE_DEVICES=''"
        )
    return Machine(**json.loads(done.stdout))


def _keep_compiled_code_private() -> None:
    """Move the caches of compiled code to the user's own folder. By default torch and CUTLASS run
    what they find in a folder of /tmp whose name another user can guess and create first (torch
    2.9.1, `_inductor/runtime/cache_dir_utils.py`; nvidia-cutlass-dsl, `base_dsl/cache_helpers.py`,
    which creates it on import)."""
    from _inf.models.cache import cache_root  # `check_pins` runs where nothing is installed

    with contextlib.suppress(ConfigError):  # without a cache folder they are not moved
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_root() / "torchinductor"))
        os.environ.setdefault("CUTE_DSL_CACHE_DIR", str(cache_root() / "cutlass"))


def _set_rendezvous() -> None:
    """Set what torchrun would have set; a single process listens on loopback only."""
    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("LOCAL_RANK", "0")
    if os.environ.setdefault("WORLD_SIZE", "1") == "1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


def _set_for_cuda(devices: int) -> None:
    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    # verl 0.6.1, sglang_rollout.py, reads it without a default. All of them, because the caller may
    # use the others.
    visible = os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices))))
    # Its engine takes the first device it sees: under torchrun each process must see its own only.
    entries, local = visible.split(","), int(os.environ["LOCAL_RANK"])
    if 1 < int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= len(entries):
        os.environ["CUDA_VISIBLE_DEVICES"] = entries[local]


def _set_for_cpu(machine: Machine) -> None:
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    if machine.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # verl 0.6.1, utils/device.py, takes every device that is not CUDA for an Ascend NPU.
    os.environ.setdefault("ASCEND_RT_VISIBLE_DEVICES", os.environ["LOCAL_RANK"])
    # Otherwise SGLang (0.5.9, `server_args.py`) starts no model that reads images.
    os.environ.setdefault("SGLANG_DISABLE_CUDNN_CHECK", "1")
    # Otherwise the first call compiles one clamp for over ten seconds.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")


def install() -> str:
    """For install.sh: check the pins, and build the libraries that this machine needs. Return the
    devices that engines will run on."""
    from _inf.backends.verl import cuda

    check_pins()
    machine = probe()
    built = " and ".join(compiled_libraries.load_stubs())
    if machine.devices:
        cuda.check_tools()
        where = f"{machine.devices} GPU(s)"
    else:
        compiled_libraries.kernel_library()
        where = f"the CPU: {machine.why_none}"
    return where + (f" (stub built for {built})" if built else "")
