"""Applies every patch in the scheduler's process before SGLang's own function runs there.

Each subject's module has its part of the table, with SGLang's name, what it corrects and why; files
are those of sglang 0.5.9, under `srt/`. So has a part of `_inf/parts/`, for what is its alone.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from pathlib import Path

from _inf.backends.verl.compiled_libraries import load_stubs
from _inf.backends.verl.environment import UNUSED_ON_CPU
from _inf.backends.verl.patch_table import Process, Replace, apply
from _inf.parts.found import PARTS
from _inf.runtime.interpreter import not_compiled, quick_imports

# Modules with a part of the table, in its order; those of capabilities, `scheduler.py` in their
# folders, come last.
TABLES = """
    packed_linear attention scheduler equal_prompts frozen_rows overlap drawing
    min_tokens weight_loading model_code recorded_step lora
""".split()

VARIABLES = {
    # Otherwise Triton's products of float32 are TF32.
    "TRITON_F32_DEFAULT": "ieee",
    # Otherwise the logits of a whole prefill are in memory at once: three times 5 GB for 8,192
    # scored tokens of a vocabulary of 150,000.
    "SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK": "1",
    "SGLANG_LOGITS_PROCESSER_CHUNK_SIZE": "512",
}


def import_all(log: Path) -> None:
    """Name the process, and import what `set_up` and the scheduler need.

    A fork can name itself only if this was done before its environment was set.
    """
    import setproctitle

    load_stubs()
    setproctitle.setproctitle("inf::fork_server")
    with quick_imports(without=UNUSED_ON_CPU):
        patches(Process(log.parent, pack_weights=True))  # its rows import what they name
        # The scheduler imports them when it reads a model's config (`hf_transformers_utils.py`) and
        # the first request (`managers/mm_utils.py`), while the caller waits.
        importlib.import_module("sglang.srt.managers.tokenizer_manager")
        importlib.import_module("transformers.models.llama.modeling_llama")


def patches(process: Process) -> list[Replace]:
    """Return the whole table; of rows for one function the later ones are outside."""
    names = [f"{__package__}.{name}" for name in TABLES]
    for part in sorted(PARTS, key=lambda part: part.order):
        if importlib.util.find_spec(name := f"{part.__module__}.scheduler"):
            names.append(name)
    return [row for name in names for row in importlib.import_module(name).patches(process)]


def _before_sglang(device: str) -> None:
    """Load, leave out and set what must be so before SGLang is imported."""
    load_stubs()
    if device == "cuda":
        from _inf.backends.verl.cuda import leave_out_deep_gemm

        leave_out_deep_gemm()
    else:
        sys.modules.update(dict.fromkeys(UNUSED_ON_CPU))  # type: ignore[arg-type]
    for name, value in (not_compiled() | VARIABLES).items():
        os.environ.setdefault(name, value)
    import torch
    import tqdm

    # tqdm's default is a named semaphore; a killed child leaks it, and Python warns about it.
    tqdm.tqdm.set_lock(threading.RLock())
    # cuBLAS' products are TF32, with 10 bits of the mantissa's 23, where NVIDIA's containers set
    # TORCH_ALLOW_TF32_CUBLAS_OVERRIDE.
    torch.set_float32_matmul_precision("highest")


def set_up(
    log: Path,
    *,
    device: str,
    cpu_attention: bool,
    pack_weights: bool,
    kernel_library: Path | None,
    experts: bool,
    trust_remote_code: bool,
) -> None:
    """experts: whether the model is a mixture of them. Its layers are not computed in C: sums in
    another order choose another expert where two are as good."""
    _before_sglang(device)
    from _inf.backends.verl.child.attention import register_cpu_attention
    from _inf.backends.verl.child.compiled_adapters import CompiledAdapters
    from _inf.backends.verl.child.compiled_draws import CompiledDraws
    from _inf.backends.verl.child.kernels import Kernels
    from _inf.backends.verl.child.lora import register_cpu_lora

    kernels = Kernels(kernel_library) if kernel_library else None
    process = Process(
        log.parent,
        device,
        pack_weights,
        None if experts else kernels,
        CompiledDraws(kernel_library) if kernel_library else None,
        trust_remote_code,
    )
    table = patches(process)
    # flashinfer imports tvm-ffi 0.1.15, whose handler of a segmentation fault asks for memory:
    # after a fault within malloc it would wait without end. The process is to die instead.
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    apply(table)
    if cpu_attention:
        register_cpu_attention(kernels)
    if device == "cpu":
        register_cpu_lora(CompiledAdapters(kernels) if kernels else None)
