"""The attention backend for a CPU, and its KV cache.

It replaces `layers/attention/torch_native_backend.py`, which reads neither a layer's
`sliding_window_size` nor its `logit_cap`, computes a cached prefix's queries again, and goes
through the rows of a decoding batch one by one. Here a prefill computes the new tokens' queries
only, and rows of like lengths decode together.

Queries are tokens x heads x width, the caches of keys and values slots x heads x width (maybe fewer
heads), the output tokens x (heads * width of a value). A window is SGLang's `sliding_window_size`:
how many tokens before its own a token sees, -1 for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from torch.nn.functional import embedding, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from _inf.backends.verl.child.kernels import DecodingStep, Kernels
from _inf.backends.verl.patch_table import Replace, Wrap
from _inf.runtime.free_memory import reserve

# SGLang has rules of its own for this name: no Triton kernels, no CUDA graphs.
NAME = "torch_native"
# Tokens of a group, so that its copy is still in the processor's cache when it is read.
GROUP_TOKENS = 2048
# New tokens whose queries are computed at once, after a cached prefix or under a window.
BLOCK = 256

Caches: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # a layer's keys and values


def cap_logits(logits: torch.Tensor, cap: float) -> None:
    """Gemma 2's and 3's final soft cap, in place."""
    logits.div_(cap).tanh_().mul_(cap)


class CpuAttention(AttentionBackend):
    """Implements SGLang's attention interface. A step's plan is made once for all layers."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        super().__init__()
        self._kernels = kernels
        self._plans: dict[int, Sequence[DecodingGroup | PrefillRow]] = {}  # by the window
        self._step: DecodingStep | None = None  # None: not decoding, or not in C

    def init_forward_metadata(self, batch: ForwardBatch) -> None:
        """Forget the last plans; called before the layers of a step."""
        self._plans = {}
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
        pool, window = batch.token_to_kv_pool, layer.sliding_window_size
        if save_kv_cache and k is not None:
            pool.set_kv_buffer(layer, batch.out_cache_loc, k, v)
        caches = pool.get_kv_buffer(layer.layer_id)
        if window not in self._plans:
            decodes = batch.forward_mode.is_decode()
            self._plans[window] = decoding_groups(batch, window) if decodes else prefill_rows(batch)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = q.new_empty(len(query), layer.tp_q_head_num, layer.v_head_dim)
        for part in self._plans[window]:
            part.attend(query, output, caches, layer)
        return output.flatten(1)

    forward_decode = forward_extend


@dataclasses.dataclass(frozen=True)
class DecodingGroup:
    """Rows of similar lengths with one new token each, so that the group has little padding."""

    rows: torch.Tensor  # n: their numbers in the batch
    # n x longest: where in the cache their tokens are; a slice if one row's follow each other
    slots: torch.Tensor | slice
    mask: torch.Tensor | None  # n x 1 x 1 x longest: 0, and -inf past a row's end; None: no such

    def attend(
        self, query: torch.Tensor, output: torch.Tensor, caches: Caches, layer: RadixAttention
    ) -> None:
        """Write these rows of `output`."""
        heads = caches[0].shape[1]
        keys, values = (
            _gather(cache, self.slots, query.dtype)
            .view(len(self.rows), -1, *cache.shape[1:])
            .transpose(1, 2)
            for cache in caches
        )
        # Query heads that share keys are treated as several queries of one head.
        queries = query[self.rows].view(len(keys), heads, -1, query.shape[-1])
        mask = None if self.mask is None else self.mask.to(query.dtype)
        result = _attend(queries, keys, values, mask, layer)
        output[self.rows] = result.reshape(len(keys), -1, output.shape[-1])


def decoding_groups(batch: ForwardBatch, window: int) -> list[DecodingGroup]:
    ends = batch.seq_lens
    starts = (ends - window - 1).clamp(min=0) if window >= 0 else torch.zeros_like(ends)
    lengths = (ends - starts).tolist()
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        alike = bool(groups) and lengths[row] < 2 * lengths[groups[-1][0]]
        if alike and (len(groups[-1]) + 1) * lengths[row] <= GROUP_TOKENS:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_decoding_group(batch, torch.tensor(group), starts) for group in groups]


def _decoding_group(batch: ForwardBatch, rows: torch.Tensor, starts: torch.Tensor) -> DecodingGroup:
    starts, ends = starts[rows, None], batch.seq_lens[rows, None]
    tokens = starts + torch.arange(int((ends - starts).max()))
    over = tokens >= ends
    tokens = torch.where(over, starts, tokens)  # any token of the row, for finite values
    slots = batch.req_to_token_pool.req_to_token[batch.req_pool_indices[rows, None], tokens].long()
    mask = torch.zeros(over.shape).masked_fill_(over, -math.inf)[:, None, None]
    where = _run_of(slots[0]) if len(rows) == 1 else slots
    return DecodingGroup(rows, where, mask if over.any() else None)


def _run_of(slots: torch.Tensor) -> torch.Tensor | slice:
    """The same slots as a slice if each follows the one before, so that nothing is copied."""
    first, last = int(slots[0]), int(slots[-1]) + 1
    return slice(first, last) if (slots.diff() == 1).all() else slots


@dataclasses.dataclass(frozen=True)
class PrefillRow:
    """One row of a prefill: the range of its tokens among the batch's new tokens."""

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
                _gather(cache, slots, query.dtype)
                .view(len(slots), heads, 1, -1)
                .permute(1, 2, 0, 3)
                .expand(-1, queries.shape[1], -1, -1)
                for cache in caches
            )
            block = queries[:, :, start:end]
            mask = None if plain else _mask(block, len(slots), prefix + start - first, window)
            target[:, :, start:end] = _attend(block, keys, values, mask, layer, causal=plain)


def prefill_rows(batch: ForwardBatch) -> list[PrefillRow]:
    rows, first = [], 0
    lengths = batch.req_pool_indices, batch.extend_prefix_lens, batch.extend_seq_lens
    for request, prefix, new in zip(*(column.tolist() for column in lengths), strict=True):
        slots = batch.req_to_token_pool.req_to_token[request, : prefix + new].long()
        rows.append(PrefillRow(first, first + new, slots))
        first += new
    return rows


def _mask(block: torch.Tensor, keys: int, before: int, window: int) -> torch.Tensor:
    """Tokens of the block x keys: 0 where a token sees a key, else -inf. `before`: how many keys
    come before the block's first token."""
    hidden = block.new_full((block.shape[2], keys), -math.inf)
    mask = hidden.triu(before + 1)
    return mask if window < 0 else mask + hidden.tril(before - window - 1)


def _gather(cache: torch.Tensor, slots: torch.Tensor | slice, dtype: torch.dtype) -> torch.Tensor:
    """Read whole rows of the cache; indexing would copy one number at a time."""
    rows = cache.flatten(1)
    return (rows[slots] if isinstance(slots, slice) else embedding(slots, rows)).to(dtype)


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


def create_lazily(folder: Path, create: Callable[..., None], pool: Any) -> None:
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
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not torch.zeros:
            return function(*args, **(kwargs or {}))
        [shape], dtype = args, (kwargs or {})["dtype"]
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        self.reserved += count * dtype.itemsize
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        pages = mmap.mmap(-1, count * dtype.itemsize, flags=private)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(pages, dtype=dtype).view(shape)


def register_cpu_attention(kernels: Kernels | None) -> None:
    register_attention_backend(NAME)(lambda runner: CpuAttention(kernels))


def patches(folder: Path) -> list[Replace]:
    """The table of patches for a CPU. folder: the engine's."""
    # fmt: off
    return [
        Replace("sglang.srt.layers.logits_processor:fused_softcap", cap_logits,
                "it is a Triton kernel, for which a CPU has no driver"),
        Wrap("sglang.srt.mem_cache.memory_pool:MHATokenToKVPool._create_buffers",
             functools.partial(create_lazily, folder),
             "on a CPU it writes zeros to the whole cache, for a second at each start"),
    ]
    # fmt: on
