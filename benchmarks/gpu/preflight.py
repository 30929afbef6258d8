"""What an engine needs of the machine, without one: packages, compiler, one call of each kernel.

Each kernel is compared with the same arithmetic in plain torch.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from results import Skip
from setting import Setting, absent

ENGINE = (
    "torch triton sglang sgl_kernel verl transformers tensordict numpy gguf filelock jsonschema"
    " omegaconf psutil pydantic regex requests rich tqdm typer yaml zmq"
).split()
FEATURES = ("llguidance", "xgrammar", "flashinfer", "torch_memory_saver", "cachetools")
DISTRIBUTIONS = "torch triton sglang sgl-kernel flashinfer-python verl transformers numpy".split()
TOLERANCE = 0.03  # of bfloat16, for numbers of around 1
SEED, ROWS, HEAD = 0, 8, 128
DEVICE = "cuda"


def driver_and_torch_see_the_gpu(setting: Setting) -> Any:
    setting.needs_gpu()
    import torch

    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    said = "not found"
    if shutil.which(query[0]):
        asked = subprocess.run(query, capture_output=True, text=True, timeout=60)
        said = asked.stdout.strip() or asked.stderr.strip()
    assert torch.cuda.is_available(), f"torch sees no GPU; nvidia-smi: {said}"
    properties = torch.cuda.get_device_properties(0)
    return {
        "nvidia_smi": said,
        "device": torch.cuda.get_device_name(0),
        "capability": torch.cuda.get_device_capability(0),
        "gb": round(properties.total_memory / 1e9, 1),
        "cuda_of_torch": torch.version.cuda,
    }


def packages_of_the_engine_are_installed(setting: Setting) -> Any:
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "no metadata"
    without = [name for name in FEATURES if not importlib.util.find_spec(name) or stands_in(name)]
    missing = [name for name in ENGINE if not importlib.util.find_spec(name)]
    assert not missing, f"not installed: {' '.join(missing)}; {versions}"
    return {**versions, "features_without_their_package": without}


def stands_in(package: str) -> bool:
    return package == "llguidance" and absent(package)


def compiler_and_python_headers_are_there(setting: Setting) -> Any:
    """Triton builds its launcher with the two; nvcc and ninja are only reported."""
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    found = {name: shutil.which(name) for name in ("cc", "gcc", "c++", "nvcc", "ninja")}
    report = {**found, "CUDA_HOME": os.environ.get("CUDA_HOME"), "Python.h": header.exists()}
    setting.needs_gpu(f"Triton does not run on a CPU; found {report}")
    assert header.exists(), f"{header} is missing: install the headers of this Python; {report}"
    assert os.environ.get("CC") or found["cc"] or found["gcc"], f"no C compiler; {report}"
    return report


def triton_compiles_and_runs_a_kernel(setting: Setting) -> Any:
    setting.needs_gpu()
    import torch

    x = normal(ROWS, 1024)
    off = apart(torch.compile(lambda x: torch.relu(x) * 2 + 1)(x), torch.relu(x) * 2 + 1)
    return {"largest_difference": off}


def rms_norm_is_that_of_plain_torch(setting: Setting) -> Any:
    setting.needs_gpu()
    import sgl_kernel
    import torch

    x, weight = normal(ROWS, 1024), normal(1024)
    wide = x.float()
    plain = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.float()
    off = apart(sgl_kernel.rmsnorm(x, weight, 1e-6), plain)
    try:  # for information: float32 is computed without this kernel
        sgl_kernel.rmsnorm(wide, weight.float(), 1e-6)
        float32 = "runs"
    except Exception as refusal:
        float32 = str(refusal).partition("\n")[0]
    return {"largest_difference": off, "float32": float32}


def rope_is_that_of_plain_torch(setting: Setting) -> Any:
    """The compiled function that takes a cache of cosines and sines, in place."""
    setting.needs_gpu()
    import sgl_kernel
    import torch

    name = "apply_rope_with_cos_sin_cache_inplace"
    if setting.kit and not hasattr(sgl_kernel, name):
        raise Skip(f"the kit's sgl_kernel has no {name}")
    positions = torch.arange(ROWS, device=DEVICE) * 7
    steps = torch.arange(0, HEAD, 2, device=DEVICE).float() / HEAD
    angles = torch.arange(64, device=DEVICE).float()[:, None] * (1e6**-steps)[None]
    cache = torch.cat([angles.cos(), angles.sin()], -1)
    query, key = normal(ROWS, 16 * HEAD), normal(ROWS, 8 * HEAD)
    plain = [rotated(each, cache[positions]) for each in (query, key)]
    getattr(sgl_kernel, name)(positions, query, key, HEAD, cache, True)
    return {"largest_difference": max(apart(query, plain[0]), apart(key, plain[1]))}


def rotated(rows: Any, cache: Any) -> Any:
    import torch

    cos, sin = (half[:, None] for half in cache.chunk(2, -1))
    first, second = rows.float().view(ROWS, -1, HEAD).chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.view(ROWS, -1)


def flash_attention_3_is_that_of_plain_torch(setting: Setting) -> Any:
    setting.needs_gpu()
    if setting.kit:
        raise Skip("the kit leaves FlashAttention 3 out")
    import torch
    from sgl_kernel.flash_attn import flash_attn_varlen_func

    lengths = [5, 33]
    total, ends = sum(lengths), torch.tensor([0, 5, 38], dtype=torch.int32, device=DEVICE)
    query, key, value = normal(total, 16, HEAD), normal(total, 8, HEAD), normal(total, 8, HEAD)
    ours = flash_attn_varlen_func(query, key, value, ends, ends, 33, 33, causal=True)
    plain = [
        torch.nn.functional.scaled_dot_product_attention(
            *(part.float().transpose(0, 1) for part in rows), is_causal=True, enable_gqa=True
        ).transpose(0, 1)
        for rows in zip(*(each.split(lengths) for each in (query, key, value)), strict=True)
    ]
    return {"largest_difference": apart(ours, torch.cat(plain))}


def sampling_draws_what_the_filters_leave(setting: Setting) -> Any:
    """Top-k with top-p in one kernel, and min-p: each token that they draw is one of those left."""
    setting.needs_gpu()
    if setting.kit:
        raise Skip("the kit leaves these two sampling kernels out")
    import sgl_kernel
    import torch

    generator = torch.Generator(DEVICE).manual_seed(SEED)
    probs = (torch.randn(256, 151_936, device=DEVICE, generator=generator) * 3.5).softmax(-1)
    values, order = probs.sort(-1, descending=True)
    top_k, top_p, min_p = 50, 0.8, 0.2
    nucleus = (values.cumsum(-1) - values <= top_p + 1e-4)[:, :top_k]
    left = torch.zeros_like(probs, dtype=torch.bool)
    left.scatter_(-1, order[:, :top_k], nucleus)
    rows = torch.arange(256, device=DEVICE)
    drawn = sgl_kernel.top_k_top_p_sampling_from_probs(
        probs,
        torch.full((256,), top_k, dtype=torch.int32, device=DEVICE),
        torch.full((256,), top_p, device=DEVICE),
        filter_apply_order="joint",
    )
    assert left[rows, drawn.long()].all(), "top-k with top-p drew a token that they exclude"
    likely = probs >= min_p * values[:, :1] * (1 - 1e-4)
    drawn = sgl_kernel.min_p_sampling_from_probs(probs, torch.full((256,), min_p, device=DEVICE))
    assert likely[rows, drawn.long()].all(), "min-p drew a token that it excludes"
    return {"different_tokens": len(set(drawn.tolist()))}


def normal(*shape: int) -> Any:
    """Numbers of bfloat16, different for each shape and the same each time."""
    import torch

    generator = torch.Generator(DEVICE).manual_seed(SEED)
    return torch.randn(*shape, device=DEVICE, generator=generator).bfloat16()


def apart(ours: Any, plain: Any) -> float:
    """The largest difference; beyond the tolerance of bfloat16 it is an error."""
    wide, truth = ours.float(), plain.float()
    off = (wide - truth).abs()
    share = (off / (1 + truth.abs())).max().item()
    assert wide.isfinite().all(), "not all numbers are finite"
    assert share <= TOLERANCE, f"{share} away from plain torch"
    return float(off.max())


CHECKS = (
    driver_and_torch_see_the_gpu,
    packages_of_the_engine_are_installed,
    compiler_and_python_headers_are_there,
    triton_compiles_and_runs_a_kernel,
    rms_norm_is_that_of_plain_torch,
    rope_is_that_of_plain_torch,
    flash_attention_3_is_that_of_plain_torch,
    sampling_draws_what_the_filters_leave,
)
