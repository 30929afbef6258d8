"""Matrix products on a CPU with weights that oneDNN has packed.

SGLang packs weights only for CPUs with AMX, and otherwise multiplies by them as they are stored,
which uses one core for one row and packs them again in every product of many rows. Here a weight is
packed when it is first used after loading or an update, and its plain copy is freed: the parameter
keeps its shape, and reads as NaN. Before an update the plain copy is made again from the packed
one, bit by bit. A head's plain copy is kept, because most heads share it with the embedding.

For few rows in float32 a function in C multiplies by the same packed weight: it reads memory faster
than oneDNN's product, and sums a row's numbers in the same order, however many rows there are.

Not packed: quantized weights, experts of a mixture, and dtypes for which oneDNN has no product on
this CPU (float16 on most); they take SGLang's own path.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from sglang.srt.server_args import get_global_server_args
from sglang.srt.utils import use_intel_amx_backend
from torch.utils._python_dispatch import _disable_current_modes

from _inf.backends.verl.child.kernels import Kernels
from _inf.backends.verl.patch_table import Process, Replace, Wrap

if TYPE_CHECKING:
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.model_executor.model_runner import ModelRunner

_onednn = torch.ops.mkldnn
FEW_ROWS = 64  # up to as many are multiplied in C
_PANELS = (64, 48, 32, 24, 16, 8)  # how many columns of an output oneDNN may put side by side
unpackings = 0  # how often all packed weights of this process were freed


@dataclasses.dataclass(frozen=True)
class PackedWeight:
    """A weight that oneDNN has packed.

    panels: its memory, panels x rows x columns; None if that is not the order, or not in float32.
    """

    tensor: torch.Tensor
    panels: torch.Tensor | None


def packed_linear(
    kernels: Kernels | None,
    apply: Callable[..., torch.Tensor],
    self: object,
    layer: torch.nn.Module,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    packed = _packed_weight(layer, keep_plain=False)
    return apply(self, layer, x, bias) if packed is None else multiply(kernels, x, packed, bias)


def packed_head(
    kernels: Kernels | None,
    compute: Callable[..., torch.Tensor],
    self: LogitsProcessor,
    hidden_states: torch.Tensor,
    lm_head: torch.nn.Module,
    *args: object,
) -> torch.Tensor:
    other_dtype = self.use_fp32_lm_head or get_global_server_args().rl_on_policy_target is not None
    packed = None if other_dtype else _packed_weight(lm_head, keep_plain=True)
    if packed is None:
        return compute(self, hidden_states, lm_head, *args)
    return multiply(kernels, hidden_states.to(packed.tensor.dtype), packed)


def with_plain_weights(
    method: Callable[..., object], runner: ModelRunner, *args: object, **kwargs: object
) -> object:
    unpack_all(runner.model)
    return method(runner, *args, **kwargs)


def multiply(
    kernels: Kernels | None, x: torch.Tensor, packed: PackedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x @ weight.T + bias."""
    few, panels = 0 < x.numel() <= FEW_ROWS * x.shape[-1], packed.panels
    if (
        kernels
        and panels is not None
        and panels.shape[2] % kernels.lanes == 0  # ONEDNN_MAX_CPU_ISA may ask for narrower vectors
        and few
        and x.is_contiguous()
    ):
        return kernels.multiply(x, panels, len(packed.tensor), bias)
    return _onednn._linear_pointwise.default(x, packed.tensor, bias, "none", [], "")


def _packed_weight(layer: torch.nn.Module, *, keep_plain: bool) -> PackedWeight | None:
    """Return the packed weight; pack it if that was not done yet, None if it cannot be packed. Its
    plain copy is freed unless `keep_plain`."""
    weight = getattr(layer, "weight", None)
    packed: PackedWeight | None = getattr(weight, "packed", None)
    if packed is not None or weight is None or not _can_be_packed(layer, weight):
        return packed
    # Without modes, since this is no part of a step that is recorded.
    with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
        tensor = _onednn._reorder_linear_weight(weight.data, None)
        packed = PackedWeight(tensor, _panels(weight.data, tensor))
        if not keep_plain:
            weight.data = weight.new_full((1,), math.nan).expand(weight.shape)
    weight.packed = packed
    return packed


def _panels(plain: torch.Tensor, packed: torch.Tensor) -> torch.Tensor | None:
    """Find out the order in memory from what belongs to the first and last columns of an output."""
    if plain.dtype is not torch.float32:
        return None
    width, depth = plain.shape
    numbers = _onednn._nbytes(packed) // plain.itemsize
    memory = (ctypes.c_float * numbers).from_address(_onednn.data_ptr(packed))
    for columns in _PANELS:
        rows, rest = divmod(numbers, math.ceil(width / columns) * columns)
        if rest or rows < depth:
            continue
        panels = torch.frombuffer(memory, dtype=plain.dtype).view(-1, rows, columns)
        last = plain[(len(panels) - 1) * columns :]
        same = torch.equal(panels[0, :depth, : min(columns, width)], plain[:columns].T)
        if same and torch.equal(panels[-1, :depth, : len(last)], last.T):
            return panels
    return None


def unpack_all(model: torch.nn.Module) -> None:
    global unpackings
    unpackings += 1
    for weight in model.parameters():
        packed = weight.__dict__.pop("packed", None)
        if packed is not None and weight.untyped_storage().nbytes() < weight.nbytes:
            weight.data = packed.tensor.to_dense()


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


def patches(process: Process) -> list[Replace]:
    if not process.pack_weights:
        return []
    kernels = process.kernels
    # fmt: off
    return [
        Wrap("sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply",
             functools.partial(packed_linear, kernels),
             "its products on a CPU do not use packed weights"),
        Wrap("sglang.srt.layers.logits_processor:LogitsProcessor._compute_lm_head",
             functools.partial(packed_head, kernels),
             "its products on a CPU do not use packed weights"),
        Wrap("sglang.srt.model_executor.model_runner:ModelRunner.update_weights_from_tensor",
             with_plain_weights, "it changes weights, which are packed"),
    ]
    # fmt: on
