"""The products of LoRA adapters on a CPU, in place of SGLang's.

Its other backends need Triton. `lora/backend/torch_backend.py` (sglang 0.5.9) puts what it knows of
a batch in pinned memory, which torch cannot allocate without a GPU (five places); it fails in a
batch with several adapters, because it copies one number per run of equal rows into one per row;
and it visits every run in every layer, where nothing has an adapter too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from sglang.srt.lora.backend.base_backend import BaseLoRABackend
from sglang.srt.lora.backend.lora_registry import register_lora_backend
from sglang.srt.lora.utils import generate_sequence_lengths
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from _inf.backends.verl.child.compiled_adapters import CompiledAdapters
from _inf.backends.verl.patch_table import Process, Replace, Wrap

NAME = "torch_native"
MANY = 64  # tokens of one adapter, whose products operators compute faster than the C function


def register_cpu_lora(compiled: CompiledAdapters | None) -> None:
    register_lora_backend(NAME)(lambda: functools.partial(CpuLora, compiled=compiled))


def with_its_bias(
    build: Callable[..., None], self: torch.nn.Module, base_layer: torch.nn.Module, *args: object
) -> None:
    build(self, base_layer, *args)
    bias = getattr(base_layer, "bias", None)
    if isinstance(bias, torch.nn.Parameter):
        self.bias = bias


class Used(NamedTuple):
    """An adapter of a batch: its place in SGLang's buffers, and its tokens."""

    slot: int
    rank: int
    scaling: float
    tokens: torch.Tensor


class CpuLora(BaseLoRABackend):
    """Implements SGLang's interface: a layer's output gets, in place, what its adapters add.

    compiled: adds it in C."""

    name = NAME

    def __init__(
        self,
        max_loras_per_batch: int,
        device: torch.device,
        compiled: CompiledAdapters | None = None,
        **_: object,
    ) -> None:
        super().__init__(max_loras_per_batch, device)
        self._compiled = compiled
        self._in_c = False  # this step
        self._used: list[Used] = []

    def prepare_lora_batch(
        self,
        forward_batch: ForwardBatch,
        weight_indices: list[int],
        lora_ranks: list[int],
        scalings: list[float],
        use_cuda_graph: bool,
    ) -> None:
        """Called before the layers of a step. `weight_indices`: each row's place in the buffers;
        `lora_ranks`, `scalings`: by place, 0 for the base."""
        slots = sorted(slot for slot in set(weight_indices) if lora_ranks[slot])
        self._used, self._in_c = [], False
        if not slots and not (self._compiled and forward_batch.forward_mode.is_decode()):
            return
        lengths = generate_sequence_lengths(forward_batch, device="cpu")
        of_tokens = torch.tensor(weight_indices).repeat_interleave(lengths)
        few = len(of_tokens) <= MANY
        if self._compiled and (few or len(set(weight_indices)) > 1):
            # Rows of a later step may have adapters where this one, which is recorded, has none.
            self._compiled.begin(of_tokens.tolist(), lora_ranks, scalings)
            self._in_c = True
        for slot in slots:
            tokens = (of_tokens == slot).nonzero()[:, 0]
            self._used.append(Used(slot, lora_ranks[slot], scalings[slot], tokens))

    def run_lora_a_sgemm(
        self, x: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What SGLang gives to the second product, which computes both."""
        return x, weights

    def run_lora_b_sgemm(
        self,
        x: tuple[torch.Tensor, torch.Tensor],
        weights: torch.Tensor,
        output_offset: torch.Tensor,
        base_output: torch.Tensor,
    ) -> torch.Tensor:
        return self._add(*x, weights, output_offset, base_output)

    def run_qkv_lora(
        self,
        x: torch.Tensor,
        qkv_lora_a: torch.Tensor,
        qkv_lora_b: torch.Tensor,
        output_offset: torch.Tensor,
        base_output: torch.Tensor,
        **_: object,
    ) -> torch.Tensor:
        return self._add(x, qkv_lora_a, qkv_lora_b, output_offset, base_output)

    def run_gate_up_lora(
        self,
        x: torch.Tensor,
        gate_up_lora_a: torch.Tensor,
        gate_up_lora_b: torch.Tensor,
        output_offset: torch.Tensor,
        base_output: torch.Tensor,
    ) -> torch.Tensor:
        return self._add(x, gate_up_lora_a, gate_up_lora_b, output_offset, base_output)

    def _add(
        self,
        x: torch.Tensor,
        inner: torch.Tensor,
        outer: torch.Tensor,
        offsets: torch.Tensor,
        output: torch.Tensor,
    ) -> torch.Tensor:
        """offsets: where the slices of the output (q, k and v; gate and up) begin and end."""
        compiled = self._compiled if self._in_c else None
        if compiled and compiled.add(x, inner, outer, offsets, output):
            return output
        slices = [*itertools.pairwise(offsets.tolist())]
        for used in self._used:
            own, rank = inner[used.slot, : len(slices) * used.rank], used.rank
            products = x[used.tokens] @ own.T * used.scaling
            for number, (start, end) in enumerate(slices):
                part = products[:, number * rank : (number + 1) * rank]
                added = part @ outer[used.slot, start:end, :rank].T
                output[:, start:end].index_add_(0, used.tokens, added)
        return output


def patches(process: Process) -> list[Replace]:
    reason = "load_weights of models/ finds no bias of a layer that can have adapters, and dies"
    return [Wrap("sglang.srt.lora.layers:BaseLayerWithLoRA.__init__", with_its_bias, reason)]
