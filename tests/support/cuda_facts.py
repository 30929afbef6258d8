"""Prints what a process finds out that believes in an H100: python -m tests.support.cuda_facts

Not a test: `test_cuda_path.py` runs it once, with `fake_gpu.driver`'s folder on LD_LIBRARY_PATH and
PATH, and checks the JSON that it prints. Each fact is a value or the exception that it ended with.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _inf.backends.verl import cuda, environment
from tests.support.fake_gpu import FAKE

environment.prepare("cuda")
exec(FAKE)
hide_toolkit()  # noqa: F821  of FAKE
cuda.leave_out_deep_gemm()

import torch  # noqa: E402
import triton.language  # noqa: E402

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
# Dtypes and sizes of heads that are compiled for each compute capability.
COMPILED = {
    90: (("float32", 64), ("float32", 256), ("bfloat16", 128)),
    80: (("float32", 128),),
    89: (("float32", 128), ("float32", 256)),
}
BY_PLACE, BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODULES = """
    sglang.srt.managers.scheduler sgl_kernel sgl_kernel.flash_attn
    flashinfer.norm flashinfer.sampling
    sglang.srt.layers.attention.flashattention_backend sglang.srt.layers.attention.triton_backend
    _inf.backends.verl.corrected_rollout _inf.backends.verl.child.model_code
""".split()


def failure_or_none(work: Callable[[], object]) -> str | None:
    try:
        work()
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"[:200]
    return None


def imports() -> dict[str, str | None]:
    return {name: failure_or_none(lambda n=name: importlib.import_module(n)) for name in MODULES}


def misfits() -> list[str]:
    """The rows of both tables whose function cannot take upstream's arguments."""
    from _inf.backends.verl.caller_patches import PATCHES
    from _inf.backends.verl.child.setup import patches
    from _inf.backends.verl.patch_table import Process, apply

    child = patches(Process(Path(tempfile.mkdtemp()), device="cuda"))
    wrong = [fault for row in (*PATCHES, *child) if (fault := misfit(row))]
    apply(child)
    return wrong


def misfit(row: Any) -> str | None:
    """Why a row's function could not be called as upstream's own is, with all arguments by place
    or all but the required ones by name."""
    from _inf.backends.verl.patch_table import Wrap

    upstream = getattr(row.owner, row.attribute)
    if not inspect.isroutine(upstream):
        return None  # a module, or a table
    named = inspect.signature(upstream).parameters.values()
    own = inspect.signature(row.replacement)
    first = [upstream] if isinstance(row, Wrap) else []
    required = [each for each in named if each.default is each.empty and each.kind <= BY_PLACE]
    others = [each for each in named if each not in required and each.kind in (BY_PLACE, BY_NAME)]
    optional = {each.name: each for each in others}
    by_place = [each for each in others if each.kind == BY_PLACE]
    by_name = {name: each for name, each in optional.items() if each.kind == BY_NAME}
    faults = (
        failure_or_none(lambda: own.bind(*first, *required, *by_place, **by_name)),
        failure_or_none(lambda: own.bind(*first, *required, **optional)),
    )
    return None if None in faults else f"{row.owner.__name__}.{row.attribute}: {faults[0]}"


def models() -> dict[str, str | None]:
    """The architectures that were compared on a CPU: does the class of each one load?"""
    from sglang.srt.models.registry import ModelRegistry

    from _inf.backends.verl.support import EXACT_ON_CPU

    return {
        name: failure_or_none(lambda n=name: ModelRegistry.resolve_model_cls(n))
        for name in EXACT_ON_CPU
    }


def deep_gemm() -> bool:
    """Whether SGLang would use it, whose import needs the toolkit."""
    from sglang.srt.layers.deep_gemm_wrapper import ENABLE_JIT_DEEPGEMM

    return bool(ENABLE_JIT_DEEPGEMM)


def norms() -> dict[str, Any]:
    """The `forward` of both norms, on tensors of a CPU: what each dtype gives or ends with."""
    from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm

    return {
        f"{norm.__name__} {name}": failure_or_none(
            lambda n=norm, d=dtype: n(64).to(d)(torch.ones(2, 64, dtype=d))
        )
        for norm in (RMSNorm, GemmaRMSNorm)
        for name, dtype in DTYPES.items()
    }


def kernels() -> list[dict[str, Any]]:
    """SGLang's Triton attention and experts, compiled for the GPU: of each kernel the shared memory
    in bytes that it asks for, and whether it multiplies in TF32 or rounds to float16."""
    from sglang.srt.layers.attention.triton_ops import extend_attention
    from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
    from sglang.srt.layers.moe.fused_moe_triton.fused_moe import invoke_fused_moe_kernel
    from sglang.srt.server_args import get_global_server_args
    from triton.runtime.jit import JITFunction

    made_kernels = []
    start = JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = start(self, *args, grid=grid, warmup=True, **kwargs)
        code = kernel.asm["ttir"]
        made = {"shared": kernel.metadata.shared, "tf32": "tf32" in code}
        made["float16"] = re.search(r"(?<!b)f16\b", code) is not None
        made_kernels.append({"kernel": self.__name__, **case, **made})
        return kernel

    def ints(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    def attend(name: str, size: int) -> None:
        """Four heads of queries beside two of keys."""
        case.update(dtype=name, size=size)
        get_global_server_args().dtype = name
        places, dtype = torch.arange(8), DTYPES[name]
        queries, keys = (torch.zeros(8, heads, size, dtype=dtype) for heads in (4, 2))
        pool = torch.zeros(64, 2, size, dtype=dtype)
        extend_attention.extend_attention_fwd(
            queries, keys, keys.clone(), queries.clone(), pool, pool.clone(), ints(0, 8),
            ints(0, 4), places, None, True, None, 8, 0.125,
        )  # fmt: skip
        parts, one = (torch.zeros(1, 4, 8, size), torch.zeros(1, 4, 8)), queries[:1]
        decode_attention_fwd(
            one, pool, pool.clone(), one.clone(), ints(0, 8), places, *parts, ints(8), 8, 0.125
        )

    def ask_experts() -> None:
        """Two tokens of float32, each for one of two experts."""
        case.update(dtype="float32", size=64)
        tokens, weights = torch.zeros(2, 64), torch.zeros(2, 32, 64)
        tiles = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}
        invoke_fused_moe_kernel(
            tokens, weights, None, torch.zeros(2, 1, 32), None, None, None, torch.ones(2, 1),
            ints(0, 1).view(2, 1), ints(*range(32)), ints(0, 1), ints(32), False, 1, tiles,
            compute_type=triton.language.float16, use_fp8_w8a8=False, use_int8_w8a8=False,
            use_int8_w8a16=False, use_int4_w4a16=False, per_channel_quant=False,
        )  # fmt: skip

    JITFunction.run = compiled
    case = {}
    os.environ["TRITON_F32_DEFAULT"] = "ieee"
    for capability, compiled_cases in COMPILED.items():
        case["capability"] = triton_driver.capability = capability  # noqa: F821  of FAKE
        extend_attention.CUDA_CAPABILITY = divmod(capability, 10)
        for each in compiled_cases:
            attend(*each)
        ask_experts()
    return made_kernels


def main() -> None:
    facts = {"imports": imports()}
    import sgl_kernel
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy"))
    facts["library"] = sgl_kernel.common_ops.__file__
    for fact in (misfits, models, deep_gemm, norms, kernels):
        facts[fact.__name__] = fact()
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
