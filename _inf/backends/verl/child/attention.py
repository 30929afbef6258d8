"""Attention on a CPU: an attention backend for SGLang's scheduler process.

It takes the place of sglang 0.5.9's `srt/layers/attention/torch_native_backend.py`, which reads
neither a layer's `sliding_window_size` nor its `logit_cap`, computes a cached prefix's queries
again, and goes through the rows of a decoding batch one by one. Here a prefill computes the new
tokens' queries only, and rows of like lengths decode together.

In: a batch of SGLang's, with queries of its new tokens (tokens x heads x width), and the cache of
keys and values (slots x heads x width, maybe fewer heads than queries have). Out: what the tokens
attend to, tokens x (heads * width of a value).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers import logits_processor
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from torch.nn.functional import embedding, scaled_dot_product_attention

# SGLang has rules of its own for this name: no Triton kernels, no CUDA graphs.
NAME = "torch_native"
# Tokens of a group: what is copied for it should still be in the processor's cache when it is read.
GROUP_TOKENS = 2048
# New tokens whose queries are computed at once beside a cached prefix or under a window.
BLOCK = 256


def register_cpu_attention() -> None:
    """Called once, in the scheduler's process."""
    register_attention_backend(NAME)(lambda runner: CpuAttention())
    # A Triton kernel, for which a CPU has no driver (`srt/layers/logits_processor.py`).
    logits_processor.fused_softcap = cap_logits


def cap_logits(logits: torch.Tensor, cap: float) -> None:
    """Gemma 2's and 3's final soft cap, in place."""
    logits.div_(cap).tanh_().mul_(cap)


@dataclasses.dataclass(frozen=True)
class Decoding:
    """Rows of like lengths, each with one new token, so that little of the group is padding."""

    rows: torch.Tensor  # n: their numbers in the batch
    slots: torch.Tensor  # n x longest: where in the cache their tokens are
    mask: torch.Tensor  # n x 1 x 1 x longest: 0, and -inf past a row's end


@dataclasses.dataclass(frozen=True)
class Extension:
    """One row of a prefill: which of the batch's new tokens are its own."""

    first: int
    last: int  # one past
    prefix: int  # tokens before them, which are in the cache
    slots: torch.Tensor  # where in the cache all its tokens are


class CpuAttention(AttentionBackend):
    """SGLang's interface of an attention backend. A step's plan is made once for all layers."""

    def __init__(self) -> None:
        super().__init__()
        self._decodings: dict[int, list[Decoding]] = {}  # by the window
        self._extensions: list[Extension] = []
        self._masks: dict[int, torch.Tensor] = {}  # by the window

    def init_forward_metadata(self, batch: Any) -> None:
        """Called before the layers of a step."""
        self._decodings, self._masks = {}, {}
        self._extensions = [] if batch.forward_mode.is_decode() else extensions(batch)

    def support_triton(self) -> bool:
        return False

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """q: a token a row."""
        keys, values = _caches(k, v, layer, batch, save_kv_cache)
        window = layer.sliding_window_size
        if window not in self._decodings:
            table = batch.req_to_token_pool.req_to_token
            self._decodings[window] = decodings(
                table, batch.req_pool_indices, batch.seq_lens, window
            )
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = q.new_empty(len(query), layer.tp_q_head_num, layer.v_head_dim)
        for group in self._decodings[window]:
            attend_decoding(query, output, keys, values, group, layer.scaling, layer.logit_cap)
        return output.flatten(1)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        batch: Any,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """q: the new tokens of all rows, one row after the other."""
        keys, values = _caches(k, v, layer, batch, save_kv_cache)
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        output = q.new_empty(len(query), layer.tp_q_head_num, layer.v_head_dim)
        for row in self._extensions:
            attend_extension(
                query, output, keys, values, row, self._mask, layer.sliding_window_size,
                layer.scaling, layer.logit_cap,
            )  # fmt: skip
        return output.flatten(1)

    def _mask(self, window: int, query: torch.Tensor) -> torch.Tensor:
        if window not in self._masks:
            longest = max((len(row.slots) for row in self._extensions), default=0)
            self._masks[window] = staircase(longest, window, query)
        return self._masks[window]


def _caches(
    k: torch.Tensor | None, v: torch.Tensor | None, layer: Any, batch: Any, save: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    pool = batch.token_to_kv_pool
    if save and k is not None:
        pool.set_kv_buffer(layer, batch.out_cache_loc, k, v)
    return pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)


# Decoding


def decodings(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int = -1,
) -> list[Decoding]:
    """All rows of a batch. `req_to_token` has a line of slots for each request in the pool;
    `window`: how many tokens before its own a token sees, -1 for all (SGLang's convention)."""
    first = (seq_lens - window - 1).clamp(min=0) if window >= 0 else torch.zeros_like(seq_lens)
    lengths = (seq_lens - first).tolist()
    groups = []
    for like in _alike(sorted(range(len(lengths)), key=lengths.__getitem__), lengths):
        rows = torch.tensor(like, device=seq_lens.device)
        tokens = torch.arange(lengths[like[-1]], device=rows.device) + first[rows][:, None]
        over = tokens >= seq_lens[rows][:, None]
        tokens = torch.where(over, tokens[:, :1], tokens)  # some token of its own: it is finite
        slots = req_to_token[req_pool_indices[rows][:, None], tokens].long()
        mask = torch.zeros(over.shape, device=rows.device).masked_fill_(over, -math.inf)
        groups.append(Decoding(rows, slots, mask[:, None, None]))
    return groups


def _alike(order: list[int], lengths: list[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for row in order:
        if (
            groups
            and (len(groups[-1]) + 1) * lengths[row] <= GROUP_TOKENS
            and lengths[row] < 2 * lengths[groups[-1][0]]
        ):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def attend_decoding(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    group: Decoding,
    scaling: float,
    cap: float,
) -> None:
    """Writes the group's rows of `output`."""
    heads = k_cache.shape[1]
    count, longest = group.slots.shape
    keys, values = (
        _gathered(cache, group.slots, query.dtype).view(count, longest, heads, -1).transpose(1, 2)
        for cache in (k_cache, v_cache)
    )
    # The query heads that share keys are so many queries of one head.
    asked = query[group.rows].view(count, heads, -1, query.shape[-1])
    said = _attend(asked, keys, values, group.mask.to(query.dtype), scaling, cap)
    output[group.rows] = said.reshape(count, -1, output.shape[-1])


def _gathered(cache: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Whole rows of the cache; indexing would copy number by number."""
    return embedding(slots, cache.flatten(1)).to(dtype)


# Prefill


def extensions(batch: Any) -> list[Extension]:
    """The rows of a prefill, in the order of their new tokens."""
    found: list[Extension] = []
    table, first = batch.req_to_token_pool.req_to_token, 0
    lengths = zip(
        batch.req_pool_indices.tolist(),
        batch.extend_prefix_lens.tolist(),
        batch.extend_seq_lens.tolist(),
        strict=True,
    )
    for request, prefix, new in lengths:
        slots = table[request, : prefix + new].long()
        found.append(Extension(first, first + new, prefix, slots))
        first += new
    return found


def staircase(longest: int, window: int, like: torch.Tensor) -> torch.Tensor:
    """BLOCK x (before + BLOCK): what each token of a block sees, 0 or -inf, in a row of `longest`.

    Column `before` is the block's first token; the columns left of it are the tokens before.
    """
    before = longest if window < 0 else min(longest, window)
    distance = torch.arange(BLOCK)[:, None] - (torch.arange(before + BLOCK)[None, :] - before)
    hidden = distance < 0
    if window >= 0:
        hidden |= distance > window
    return torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf).to(like)


def attend_extension(
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    row: Extension,
    mask_of: Callable[[int, torch.Tensor], torch.Tensor],
    window: int,
    scaling: float,
    cap: float,
) -> None:
    """Writes one row's tokens of `output`. `mask_of`: a window's `staircase` for rows of this
    length, which a row without prefix, window and cap does not need."""
    total = len(row.slots)
    seen = 0 if window < 0 else max(0, row.prefix - window)  # before it nobody looks
    heads = k_cache.shape[1]
    asked = query[row.first : row.last]
    # heads x the queries' heads that share one x tokens x width, and nothing is copied for it
    asked = asked.view(len(asked), heads, -1, asked.shape[-1]).permute(1, 2, 0, 3)
    shape = (heads, asked.shape[1], -1, -1)
    keys, values = (
        _gathered(cache, row.slots[seen:], query.dtype)
        .view(total - seen, heads, -1)
        .transpose(0, 1)[:, None]
        .expand(shape)
        for cache in (k_cache, v_cache)
    )
    target = output[row.first : row.last].view(asked.shape[2], heads, asked.shape[1], -1)
    target = target.permute(1, 2, 0, 3)
    if row.prefix == 0 and not cap and (window < 0 or total <= window + 1):
        target.copy_(
            scaled_dot_product_attention(asked, keys, values, is_causal=True, scale=scaling)
        )
        return
    mask = mask_of(window, query)
    before = mask.shape[1] - BLOCK
    for start in range(0, asked.shape[2], BLOCK):
        end = min(start + BLOCK, asked.shape[2])
        first = row.prefix + start - seen  # of the block, among the keys
        low = max(0, first - before)
        part = mask[: end - start, before - (first - low) : before + end - start]
        target[:, :, start:end] = _attend(
            asked[:, :, start:end],
            keys[:, :, low : first + end - start],
            values[:, :, low : first + end - start],
            part,
            scaling,
            cap,
        )


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    cap: float,
) -> torch.Tensor:
    """`cap`: the scores go through cap * tanh(score / cap) before the softmax; 0 for none."""
    if not cap:
        return scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    scores = query @ keys.transpose(-1, -2) * scaling
    cap_logits(scores, cap)
    return torch.softmax(scores + mask, dim=-1) @ values
