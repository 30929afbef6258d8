"""Attention of a decoding batch on a CPU, for many rows at once.

Corrects sglang 0.5.9, `srt/layers/attention/torch_native_backend.py`: in each layer it goes through
the rows one by one and gathers each one's keys and values with an indexing that copies number by
number, which is more than half of a step of 64 rows. Here rows of like lengths go together, where
their keys stand in the cache is looked up once a step, and rows of the cache are copied whole.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import embedding, scaled_dot_product_attention

# Tokens of a group: what is copied for it should still be in the processor's cache when it is read.
MOST = 2048


@dataclasses.dataclass(frozen=True)
class Group:
    """Rows of like lengths, so that little of it is padding."""

    rows: torch.Tensor  # n: their numbers in the batch
    places: torch.Tensor  # n x longest: their tokens' places in the cache
    mask: torch.Tensor  # n x 1 x 1 x longest: 0, and -inf past a row's end


def mend_attention() -> None:
    """Called once, in the child."""
    TorchNativeAttnBackend.init_forward_metadata = _look_up
    TorchNativeAttnBackend._run_sdpa_forward_decode = attend


def _look_up(self: Any, batch: Any) -> None:
    if batch.forward_mode.is_decode():
        table = batch.req_to_token_pool.req_to_token
        self.forward_metadata = groups(table, batch.req_pool_indices, batch.seq_lens)


def groups(
    req_to_token: torch.Tensor, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor
) -> list[Group]:
    """All rows of a batch; `req_to_token` has a line of places for each request in the pool."""
    lengths = seq_lens.tolist()
    found = []
    for like in _alike(sorted(range(len(lengths)), key=lengths.__getitem__), lengths):
        rows = torch.tensor(like, device=seq_lens.device)
        longest = lengths[like[-1]]
        over = torch.arange(longest, device=rows.device) >= seq_lens[rows][:, None]
        places = req_to_token[req_pool_indices[rows], :longest].long()
        places = torch.where(over, places[:, :1], places)  # some place of its own: it is finite
        mask = torch.zeros(over.shape, device=rows.device).masked_fill_(over, -math.inf)
        found.append(Group(rows, places, mask[:, None, None]))
    return found


def _alike(order: list[int], lengths: list[int]) -> list[list[int]]:
    cut: list[list[int]] = []
    for row in order:
        if (
            cut
            and (len(cut[-1]) + 1) * lengths[row] <= MOST
            and lengths[row] < 2 * lengths[cut[-1][0]]
        ):
            cut[-1].append(row)
        else:
            cut.append([row])
    return cut


def attend(
    self: Any,
    query: torch.Tensor,
    output: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *_: Any,
    scaling: float | None = None,
    **__: Any,
) -> torch.Tensor:
    """query, output: rows x heads x width; caches: places x heads x width, maybe fewer heads."""
    heads, width = k_cache.shape[1:]
    for group in self.forward_metadata:
        count, longest = group.places.shape
        keys, values = (
            embedding(group.places, cache.flatten(1))
            .view(count, longest, heads, -1)
            .transpose(1, 2)
            .to(query.dtype)
            for cache in (k_cache, v_cache)
        )
        # The query heads that share keys are so many queries of one head.
        asked = query[group.rows].view(count, heads, -1, width)
        mask = group.mask.to(query.dtype)
        said = scaled_dot_product_attention(asked, keys, values, attn_mask=mask, scale=scaling)
        output[group.rows] = said.reshape(count, -1, output.shape[-1])
    return output
