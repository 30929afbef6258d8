"""Matrix products on a CPU with weights that oneDNN has packed.

SGLang packs weights only for CPUs with AMX, and otherwise multiplies by them as they are stored,
which uses one core for one row and packs them again in every product of many rows. Here a weight is
packed when it is first used after loading or an update, and its plain copy is freed: the parameter
keeps its shape, and reads as NaN. Before an update the plain copy is made again from the packed
one, bit by bit. A head's plain copy is kept, because most heads share it with the embedding.

Not packed: quantized weights, experts of a mixture, and dtypes for which oneDNN has no product on
this CPU (float16 on most); they take SGLang's own path.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.server_args import get_global_server_args
from sglang.srt.utils import use_intel_amx_backend

from _inf.backends.verl.patch_table import Replace, Wrap

_onednn = torch.ops.mkldnn
_PACKED = "packed"  # a parameter's attribute: its packed weight


def packed_linear(
    apply: Callable[..., torch.Tensor],
    self: Any,
    layer: torch.nn.Module,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    packed = _packed_weight(layer, keep_plain=False)
    return apply(self, layer, x, bias) if packed is None else multiply(x, packed, bias)


def packed_head(
    compute: Callable[..., torch.Tensor],
    self: Any,
    hidden_states: torch.Tensor,
    lm_head: torch.nn.Module,
    *args: object,
) -> torch.Tensor:
    other_dtype = self.use_fp32_lm_head or get_global_server_args().rl_on_policy_target is not None
    packed = None if other_dtype else _packed_weight(lm_head, keep_plain=True)
    if packed is None:
        return compute(self, hidden_states, lm_head, *args)
    return multiply(hidden_states.to(packed.dtype), packed)


def with_plain_weights(
    method: Callable[..., Any], runner: Any, *args: object, **kwargs: object
) -> Any:
    unpack_all(runner.model)
    return method(runner, *args, **kwargs)


def multiply(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x @ weight.T + bias."""
    return _onednn._linear_pointwise.default(x, packed, bias, "none", [], "")


def _packed_weight(layer: torch.nn.Module, *, keep_plain: bool) -> torch.Tensor | None:
    """Return the packed weight; pack it if that was not done yet, None if it cannot be packed. Its
    plain copy is freed unless `keep_plain`."""
    weight: Any = getattr(layer, "weight", None)
    packed: torch.Tensor | None = getattr(weight, _PACKED, None)
    if packed is not None or not _can_be_packed(layer, weight):
        return packed
    with torch.inference_mode(False), torch.no_grad():
        packed = _onednn._reorder_linear_weight(weight.data, None)
        if not keep_plain:
            weight.data = weight.new_full((1,), math.nan).expand(weight.shape)
    setattr(weight, _PACKED, packed)
    return packed


def unpack_all(model: torch.nn.Module) -> None:
    for weight in model.parameters():
        packed = weight.__dict__.pop(_PACKED, None)
        if packed is not None and weight.untyped_storage().nbytes() < weight.nbytes:
            weight.data = packed.to_dense()


def _can_be_packed(layer: torch.nn.Module, weight: object) -> bool:
    return (
        isinstance(weight, torch.nn.Parameter)
        and weight.dim() == 2
        and weight.numel() > 1  # one number cannot be told from a freed copy
        and weight.dtype in _packable_dtypes()
        and not use_intel_amx_backend(layer)
        and not hasattr(layer, "set_lora")
    )


@functools.cache
def _packable_dtypes() -> frozenset[torch.dtype]:
    dtypes = {
        torch.float32: torch.backends.mkldnn.is_available(),
        torch.bfloat16: _onednn._is_mkldnn_bf16_supported(),
        torch.float16: _onednn._is_mkldnn_fp16_supported(),
    }
    return frozenset(dtype for dtype, supported in dtypes.items() if supported)


def patches() -> list[Replace]:
    """The table of patches, before rows that correct the same functions."""
    # fmt: off
    return [
        Wrap("sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply",
             packed_linear, "its products on a CPU do not use packed weights"),
        Wrap("sglang.srt.layers.logits_processor:LogitsProcessor._compute_lm_head",
             packed_head, "its products on a CPU do not use packed weights"),
        Wrap("sglang.srt.model_executor.model_runner:ModelRunner.update_weights_from_tensor",
             with_plain_weights, "it changes weights, which are packed"),
    ]
    # fmt: on
