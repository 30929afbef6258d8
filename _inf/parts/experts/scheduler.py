"""Lets SGLang's scheduler record experts without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from _inf.backends.verl.patch_table import Process, Wrap


def unpinned_without_a_gpu(
    build: Callable[..., None],
    self: Any,
    num_tokens: int,
    num_hidden_layers: int,
    num_experts_per_tok: int,
) -> None:
    shape = num_tokens, num_hidden_layers, num_experts_per_tok
    if torch.cuda.is_available():
        build(self, *shape)
        return
    self.num_tokens = num_tokens
    self.buffer = torch.zeros(shape, dtype=torch.int32)


def patches(process: Process) -> list[Wrap]:
    # fmt: off
    return [
        Wrap("sglang.srt.layers.moe.routed_experts_capturer:_RoutedExpertsHostCache.__init__",
             unpinned_without_a_gpu,
             "its buffer is in pinned memory, which torch cannot allocate without a GPU"),
    ]
    # fmt: on
