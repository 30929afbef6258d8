"""Kernels that are compiled on the machine, all at once, each in a process of its own: what a first
engine would otherwise compile one after the other. Each is compared with plain torch.

    python compiles.py NAME    one kernel; prints the largest difference
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import Skip
from setting import Setting

HEADS, KV_HEADS, WIDTH, TOKENS = 16, 8, 128, 40  # of the random model
TOLERANCE = {"bfloat16": 0.03, "float32": 1e-3}
SECONDS = 110


def attention(name: str) -> float:
    """SGLang's Triton attention: a prefill, and a step of decoding."""
    import torch
    from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
    from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd

    dtype = getattr(torch, name)
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = ((TOKENS, HEADS, WIDTH), *((TOKENS, KV_HEADS, WIDTH),) * 2)
    q, k, v = (torch.randn(*s, device="cuda", generator=generator).to(dtype) for s in shapes)
    scale = WIDTH**-0.5
    plain = torch.nn.functional.scaled_dot_product_attention(
        *(each.double().transpose(0, 1) for each in (q, k, v)),
        is_causal=True, scale=scale, enable_gqa=True,
    ).transpose(0, 1)  # fmt: skip

    def ints(*values: int) -> Any:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    places = torch.arange(TOKENS, device="cuda")
    out, ends = torch.empty_like(q), ints(0, TOKENS)
    extend_attention_fwd(
        q, k, v, out, k, v, ends, ints(0, 0), places, None, True, None, TOKENS, scale
    )
    splits = 8
    parts = torch.empty(1, HEADS, splits, WIDTH, device="cuda")
    sums, last = torch.empty(1, HEADS, splits, device="cuda"), torch.empty_like(q[-1:])
    decode_attention_fwd(
        q[-1:].contiguous(), k, v, last, ends, places, parts, sums, ints(splits), splits, scale
    )
    off: float = max((out - plain).abs().max().item(), (last[0] - plain[-1]).abs().max().item())
    assert off <= TOLERANCE[name], f"{off} away from plain torch"
    return off


def float32() -> float:
    """With the engine's patches, which choose tiles that fit."""
    import os

    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    from _inf.backends.verl.child.model_code import gpu_patches
    from _inf.backends.verl.patch_table import apply

    os.environ["TRITON_F32_DEFAULT"] = "ieee"
    apply(gpu_patches())
    arguments = ServerArgs(model_path="dummy")
    arguments.dtype = "float32"
    set_global_server_args_for_scheduler(arguments)
    return attention("float32")


def store() -> float:
    from sglang.jit_kernel.kvcache import _jit_kvcache_module

    _jit_kvcache_module(KV_HEADS * WIDTH * 2)
    return 0.0


def norms_of_queries() -> float:
    import torch
    from sglang.jit_kernel.norm import can_use_fused_inplace_qknorm

    assert can_use_fused_inplace_qknorm(WIDTH, torch.bfloat16), "it could not be compiled"
    return 0.0


def rope() -> float:
    from sglang.jit_kernel.rope import _jit_apply_rope_pos_ids_cos_sin_cache_module

    _jit_apply_rope_pos_ids_cos_sin_cache_module()
    return 0.0


KERNELS: dict[str, Callable[[], float]] = {
    "attention_in_bfloat16": lambda: attention("bfloat16"),
    "attention_in_float32": float32,
    "store": store,
    "norms_of_queries": norms_of_queries,
    "rope": rope,
}


@functools.cache
def begun(work: Path) -> dict[str, subprocess.Popen[str]]:
    """One process for each kernel, begun together."""
    return {
        name: subprocess.Popen(
            [sys.executable, __file__, name],
            stdout=open(work / f"{name}.out", "w+"),
            stderr=open(work / f"{name}.err", "w+"),
            text=True,
        )
        for name in KERNELS
    }


def compiled(name: str, setting: Setting) -> Any:
    setting.needs_gpu()
    process, end = begun(setting.work)[name], time.monotonic() + SECONDS
    try:
        process.wait(end - time.monotonic())
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    said = (setting.work / f"{name}.err").read_text(errors="replace")
    assert process.returncode == 0, said[-1500:]
    return {"largest_difference": float((setting.work / f"{name}.out").read_text().split()[-1])}


def tritons_attention_in_bfloat16_is_that_of_plain_torch(setting: Setting) -> Any:
    return compiled("attention_in_bfloat16", setting)


def tritons_attention_in_float32_is_that_of_plain_torch(setting: Setting) -> Any:
    return compiled("attention_in_float32", setting)


def storing_the_cache_compiles_with_the_toolkit(setting: Setting) -> Any:
    return compiled_with_toolkit("store", setting)


def norms_of_queries_compile_with_the_toolkit(setting: Setting) -> Any:
    return compiled_with_toolkit("norms_of_queries", setting)


def rope_compiles_with_the_toolkit(setting: Setting) -> Any:
    """Only a kit needs it, whose sgl-kernel has no other."""
    return compiled_with_toolkit("rope", setting)


def compiled_with_toolkit(name: str, setting: Setting) -> Any:
    """SGLang compiles it where the machine has CUDA's toolkit; elsewhere it does without."""
    setting.needs_gpu()
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        raise Skip("there is no CUDA toolkit (nvcc)")
    return compiled(name, setting)


CHECKS = (
    tritons_attention_in_bfloat16_is_that_of_plain_torch,
    tritons_attention_in_float32_is_that_of_plain_torch,
    storing_the_cache_compiles_with_the_toolkit,
    norms_of_queries_compile_with_the_toolkit,
    rope_compiles_with_the_toolkit,
)

if __name__ == "__main__":
    from _inf.backends.verl.environment import prepare

    prepare("cuda")
    print(KERNELS[sys.argv[1]]())
