"""Corrects SGLang's model code where it computes something else than Transformers.

`patches.py` says which file of sglang 0.5.9 each function corrects, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.activation import GeluAndMul

TANH_GELU = "gelu_pytorch_tanh"


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
