"""Corrects SGLang's model code where it computes something else than Transformers, and computes
RMSNorm and rotary embedding on a CPU in fewer PyTorch operators.

For one row such an operator takes microseconds to start and next to nothing to compute, and there
are ten thousand of them in a step. Only float32, where the order of roundings hardly matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.activation import GeluAndMul
from torch.nn.functional import embedding, rms_norm

from _inf.backends.verl.child import kernels

TANH_GELU = "gelu_pytorch_tanh"
_LAST = "last_angles"  # an attribute of a rotary embedding: the last positions, and their angles


def add_head_bias(
    compute: Callable[..., torch.Tensor], self: Any, hidden_states: Any, lm_head: Any, *args: object
) -> torch.Tensor:
    logits = compute(self, hidden_states, lm_head, *args)
    bias = getattr(lm_head, "bias", None)
    return logits if bias is None else logits + bias


def gemma_with_its_own_gelu(
    build: Callable[..., None], self: Any, config: Any, *args: object, **kwargs: object
) -> None:
    build(self, config, *args, **kwargs)
    if config.hidden_act == TANH_GELU:
        for layer in self.model.layers:
            layer.mlp.act_fn = GeluAndMul("tanh")


def cohere_with_its_own_window(
    build: Callable[..., None], self: Any, *args: object, **kwargs: object
) -> None:
    build(self, *args, **kwargs)
    if self.sliding_window_size > 0:
        self.attn.sliding_window_size = self.sliding_window_size - 1  # without the token itself


def native_in_float32(
    forward: Callable[..., Any], self: Any, x: torch.Tensor, *others: object, **named: object
) -> Any:
    if x.dtype is torch.float32:
        return self.forward_native(x, *others, **named)
    return forward(self, x, *others, **named)


def accumulate_in_float32(
    float32: object, invoke: Callable[..., None], a: torch.Tensor, *others: Any, **named: Any
) -> None:
    """float32: Triton's."""
    if a.dtype is torch.float32:
        named["compute_type"] = float32
    invoke(a, *others, **named)


def normalize(
    forward: Callable[..., Any],
    self: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    addition: torch.Tensor | None = None,
) -> Any:
    odd = (self.variance_size_override, self.override_orig_dtype, addition) != (None, None, None)
    if odd or not _is_plain(x) or not _is_plain(self.weight) or x.shape[-1] != self.hidden_size:
        return forward(self, x, residual, addition)
    if kernels.loaded() and x.is_contiguous() and (residual is None or residual.is_contiguous()):
        both = kernels.normalize(x, residual, self.weight, self.variance_epsilon)
        return both[0] if residual is None else both
    summed = x if residual is None else x + residual
    normalized = rms_norm(summed, (self.hidden_size,), self.weight, self.variance_epsilon)
    return normalized if residual is None else (normalized, summed)


def rotate(
    forward: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    self: Any,
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    *others: object,
    **named: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    odd = any(each is not None for each in (*others, *named.values())) or not self.is_neox_style
    numbered = positions.dim() == 1 and positions.dtype is torch.int64
    if odd or not numbered or not all(map(_is_plain, (query, key, self.cos_sin_cache))):
        return forward(self, positions, query, key, *others, **named)
    if kernels.loaded():
        arguments = self.head_size, self.cos_sin_cache, positions
        return kernels.rotate(query, *arguments), kernels.rotate(key, *arguments)
    if self.rotary_dim != self.head_size:
        return forward(self, positions, query, key, *others, **named)
    last = getattr(self, _LAST, None)
    if last is None or last[0] is not positions:  # a new step: all layers get the same tensor
        cos, sin = embedding(positions, self.cos_sin_cache).unsqueeze(1).chunk(2, dim=-1)
        last = positions, torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        setattr(self, _LAST, last)
    return _rotate(query, *last[1:]), _rotate(key, *last[1:])


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    width = cos.shape[-1]
    heads = x.view(len(x), x.shape[1:].numel() // width, width)
    swapped = heads.roll(width // 2, dims=-1)
    return torch.addcmul(heads * cos, swapped, sin).view(x.shape)


def silu_and_mul(forward: Callable[..., torch.Tensor], self: Any, x: torch.Tensor) -> torch.Tensor:
    if kernels.loaded() and _is_plain(x) and x.is_contiguous():
        return kernels.silu_and_mul(x)
    return forward(self, x)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.is_cpu
