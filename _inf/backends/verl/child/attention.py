"""The attention backend for a CPU, and its KV cache.

It replaces `layers/attention/torch_native_backend.py`, which reads neither a layer's
`sliding_window_size` nor its `logit_cap`, and computes a cached prefix's queries again. Here only
the new tokens' queries are computed: by operators row after row, and the rows of a decoding step in
float32 together, in C (`DecodingStep`).

Queries are tokens x heads x width, the caches of keys and values slots x heads x width (maybe fewer
heads), the output tokens x (heads * width of a value). A window is SGLang's `sliding_window_size`:
how many tokens before its own a token sees, -1 for all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy
import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch.nn.functional import embedding, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from _inf.backends.verl.child.kernels import DecodingStep, Kernels
from _inf.backends.verl.patch_table import Process, Replace, Wrap
from _inf.runtime.free_memory import reserve

# SGLang has rules of its own for this name: no Triton kernels, no CUDA graphs.
NAME = "torch_native"
# New tokens whose queries are computed at once, after a cached prefix or under a window.
BLOCK = 256

Caches: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # a layer's keys and values


def cap_logits(logits: torch.Tensor, cap: float) -> None:
    """Gemma 2's and 3's final soft cap, in place."""
    logits.div_(cap).tanh_().mul_(cap)


class CpuAttention(AttentionBackend):
    """Implements SGLang's attention interface. A step's rows are listed once for all layers."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        super().__init__()
        self._kernels = kernels
        self._rows: list[Row] = []
        self._step: DecodingStep | None = None  # None: not decoding, or not in C

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Called before the layers of a step."""
        self._rows = []
        self._step = self._kernels.step_of(batch) if self._kernels else None

    def support_triton(self) -> bool:
        return False

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """Compute the attention of one layer; q: the new tokens of all rows, row after row."""
        stored = save_kv_cache and k is not None and v is not None
        if self._step is not None and stored and q.dtype is torch.float32:
            return self._step.attend(q, k, v, layer)
        pool = batch.token_to_kv_pool
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, batch.out_cache_loc, k, v)
        caches = pool.get_kv_buffer(layer.layer_id)
        self._rows = self._rows or rows_of(batch)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = q.new_empty(len(query), layer.tp_q_head_num, layer.v_head_dim)
        for row in self._rows:
            row.attend(query, output, caches, layer)
        return output.flatten(1)

    forward_decode = forward_extend


@dataclasses.dataclass(frozen=True)
class Row:
    """The range of a row's new tokens among the batch's: in a prefill many, else one."""

    first: int
    last: int  # one past
    slots: torch.Tensor  # where in the cache all its tokens are, those before the new ones too

    def attend(
        self, query: torch.Tensor, output: torch.Tensor, caches: Caches, layer: RadixAttention
    ) -> None:
        """Write this row's tokens of `output`, block by block; all at once if no mask is needed
        because every token sees all tokens before it and none is cached."""
        heads, window = caches[0].shape[1], layer.sliding_window_size
        # heads x query heads that share it x tokens x width, as a view without a copy
        queries, target = (
            tensor[self.first : self.last].unflatten(1, (heads, -1)).permute(1, 2, 0, 3)
            for tensor in (query, output)
        )
        new = self.last - self.first
        prefix = len(self.slots) - new
        plain = prefix == 0 and not layer.logit_cap and not 0 <= window < new - 1
        for start in range(0, new, max(1, new) if plain else BLOCK):
            end = new if plain else min(start + BLOCK, new)
            # No token of the block sees the tokens before this one.
            first = max(0, prefix + start - window) if window >= 0 else 0
            slots = self.slots[first : prefix + end]
            keys, values = (
                # Whole rows of the cache: indexing would copy one number at a time.
                embedding(slots, cache.flatten(1))
                .to(query.dtype)
                .view(len(slots), heads, 1, -1)
                .permute(1, 2, 0, 3)
                .expand(-1, queries.shape[1], -1, -1)
                for cache in caches
            )
            block = queries[:, :, start:end]
            sees_all = plain or new == 1  # up to itself
            mask = None if sees_all else _mask(block, len(slots), prefix + start - first, window)
            target[:, :, start:end] = _attend(block, keys, values, mask, layer, causal=plain)


def rows_of(batch: ForwardBatch) -> list[Row]:
    rows, first, ends = [], 0, batch.seq_lens.tolist()
    decodes = batch.forward_mode.is_decode()
    new_tokens = [1] * len(ends) if decodes else batch.extend_seq_lens.tolist()
    for request, end, new in zip(batch.req_pool_indices, ends, new_tokens, strict=True):
        slots = batch.req_to_token_pool.req_to_token[request, :end].long()
        rows.append(Row(first, first + new, slots))
        first += new
    return rows


def _mask(block: torch.Tensor, keys: int, before: int, window: int) -> torch.Tensor:
    """Tokens of the block x keys: 0 where a token sees a key, else -inf. `before`: how many keys
    come before the block's first token."""
    hidden = block.new_full((block.shape[2], keys), -math.inf)
    mask = hidden.triu(before + 1)
    return mask if window < 0 else mask + hidden.tril(before - window - 1)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    layer: RadixAttention,
    *,
    causal: bool = False,
) -> torch.Tensor:
    """A token sees the keys that the mask shows it, all without one, and if `causal` those up to
    itself. With `layer.logit_cap` the scores go through cap * tanh(score / cap)."""
    if not layer.logit_cap:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, scale=layer.scaling
        )
    scores = query @ keys.transpose(-1, -2) * layer.scaling
    cap_logits(scores, layer.logit_cap)
    return torch.softmax(scores if mask is None else scores + mask, dim=-1) @ values


def create_lazily(folder: Path, create: Callable[..., None], pool: object) -> None:
    """Create the KV cache of a CPU in memory that the kernel zeroes page by page, when it is first
    used. folder: the engine's."""
    with _LazyZeros() as lazy:
        create(pool)
    reserve(folder, lazy.reserved)  # another engine's start would take it for free memory


class _LazyZeros(TorchFunctionMode):
    """Within it, `torch.zeros(shape, dtype=..., device=...)` touches no memory; reserved: how many
    bytes so far."""

    def __init__(self) -> None:
        super().__init__()
        self.reserved = 0

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        if function is not torch.zeros:
            return function(*args, **(kwargs or {}))
        [shape], dtype = args, (kwargs or {})["dtype"]
        zeros = torch.from_numpy(numpy.zeros(shape, f"i{dtype.itemsize}")).view(dtype)
        self.reserved += zeros.nbytes
        return zeros


def register_cpu_attention(kernels: Kernels | None) -> None:
    register_attention_backend(NAME)(lambda runner: CpuAttention(kernels))


def patches(process: Process) -> list[Replace]:
    if process.device != "cpu":
        return []
    # fmt: off
    return [
        Replace("sglang.srt.layers.logits_processor:fused_softcap", cap_logits,
                "it is a Triton kernel, for which a CPU has no driver"),
        Wrap("sglang.srt.mem_cache.memory_pool:MHATokenToKVPool._create_buffers",
             functools.partial(create_lazily, process.folder),
             "on a CPU it writes zeros to the whole cache, for a second at each start"),
    ]
    # fmt: on
