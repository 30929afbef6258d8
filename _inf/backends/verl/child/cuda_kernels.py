"""Kernels on a GPU, in place of those that SGLang compiles at first use or has for half precision
only, in the scheduler's process. The replacements are compiled in sgl-kernel's wheel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sgl_kernel
import torch
import triton.language
from sglang.jit_kernel import pos_enc
from sglang.srt.layers import rotary_embedding
from sglang.srt.layers.layernorm import GemmaRMSNorm, RMSNorm
from sglang.srt.layers.moe.fused_moe_triton import fused_moe

from _inf.backends.verl.patch_table import Replace, Wrap


def native_in_float32(
    forward: Callable[..., Any], self: Any, x: torch.Tensor, *others: object, **named: object
) -> Any:
    """Wrap the `forward_cuda` of a norm."""
    if x.dtype is torch.float32:
        return self.forward_native(x, *others, **named)
    return forward(self, x, *others, **named)


def accumulate_in_float32(
    invoke: Callable[..., None], a: torch.Tensor, *others: object, **named: object
) -> None:
    """Wrap `invoke_fused_moe_kernel`."""
    if a.dtype is torch.float32:
        named["compute_type"] = triton.language.float32
    invoke(a, *others, **named)


def rows() -> list[Replace]:
    """The rows of the table that hold on a GPU only."""
    needs_toolkit = "it is compiled at first use, for which CUDA's toolkit and ninja are needed"
    # fmt: off
    return [
        Replace(rotary_embedding, "apply_rope_with_cos_sin_cache_inplace",
                sgl_kernel.apply_rope_with_cos_sin_cache_inplace,
                "layers/rotary_embedding.py", needs_toolkit),
        Replace(pos_enc, "rotary_embedding", sgl_kernel.rotary_embedding,
                "layers/rotary_embedding.py, for head sizes that the other kernel lacks",
                needs_toolkit),
        *(Wrap(norm, "forward_cuda", native_in_float32, "layers/layernorm.py",
               "sgl-kernel has no kernel of it for float32")
          for norm in (RMSNorm, GemmaRMSNorm)),
        Wrap(fused_moe, "invoke_fused_moe_kernel", accumulate_in_float32,
             "layers/moe/moe_runner/triton.py",
             "every dtype but bfloat16 is accumulated in float16"),
    ]
    # fmt: on
