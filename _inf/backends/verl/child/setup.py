"""Applies every patch in the scheduler's process before SGLang's own function runs."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

from _inf.backends.verl.cuda import leave_out_deep_gemm
from _inf.runtime.interpreter import quick_imports

SCHEDULER = "sglang.srt.managers.scheduler:run_scheduler_process"
SETUP = "_inf.backends.verl.child.setup:set_up"
IMPORTS = "_inf.backends.verl.child.setup:import_all"


def import_all(log: Path) -> None:
    """Name the process, and import what `set_up` and the scheduler need.

    A fork can name itself only if this was done before its environment was set.
    """
    import setproctitle

    setproctitle.setproctitle("inf::fork_server")
    with quick_imports():
        from _inf.backends.verl.child import attention, scheduler_patches  # noqa: F401

        # Its rows import what they name, the scheduler too.
        scheduler_patches.patches(log.parent, trust_remote_code=False, pack_weights=True)


def set_up(
    log: Path,
    *,
    device: str,
    cpu_attention: bool,
    pack_weights: bool,
    kernel_library: Path | None,
    trust_remote_code: bool,
) -> None:
    if device == "cuda":
        leave_out_deep_gemm()
    import tqdm

    # tqdm's default is a named semaphore; a killed child leaks it, and Python warns about it.
    tqdm.tqdm.set_lock(threading.RLock())
    # A hundred lines about other models that this machine could not run.
    logging.getLogger("sglang.srt.models.registry").setLevel(logging.ERROR)
    # Triton's products of float32 are TF32 otherwise, which has 10 bits of the mantissa's 23.
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    from _inf.backends.verl.child.grammar_fixes import register_grammars
    from _inf.backends.verl.child.scheduler_patches import patches
    from _inf.backends.verl.patch_table import apply

    # flashinfer imports tvm-ffi 0.1.15, whose handler of a segmentation fault asks for memory:
    # after a fault within malloc it would wait without end. The process is to die instead.
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    register_grammars()
    apply(patches(log.parent, trust_remote_code=trust_remote_code, pack_weights=pack_weights))
    if cpu_attention:
        from _inf.backends.verl.child.attention import register_cpu_attention

        register_cpu_attention()
    if kernel_library is not None:
        from _inf.backends.verl.child import kernels

        kernels.load(kernel_library)
    if device == "cpu":
        from _inf.backends.verl.child.lora import register_cpu_lora

        register_cpu_lora()
