"""Attention on a CPU against its definition, written out for one row at a time."""

from __future__ import annotations

import types

import pytest
import torch

from inf import InferenceEngine

pytestmark = pytest.mark.verl

SLOTS, WIDTH, LONGEST = 2048, 16, 1000
# Each row's tokens, and those of them in the cache before the step; none where rows decode.
DECODING = [[5], [64] * 50, [1, 1000, 2, 999, 3, 500, 30, 31, 64, 65], [LONGEST] * 3]
BATCHES: list[tuple[list[int], list[int] | None]] = [(totals, None) for totals in DECODING]
BATCHES += [([1, 300, 12, 590, 1000, 601], [0, 0, 5, 300, 700, 1])]


@pytest.fixture(scope="module", autouse=True)
def sglang(tiny: InferenceEngine) -> None:
    """Only after an engine's start can SGLang be imported on a CPU."""


def defined(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int, cap: float
) -> torch.Tensor:
    """What a row's last tokens (tokens x heads x width) attend to among all of its tokens."""
    new, heads, _ = query.shape
    total, kept, _ = keys.shape
    keys, values = (each.repeat_interleave(heads // kept, dim=1) for each in (keys, values))
    scores = torch.einsum("qhw,khw->hqk", query, keys) * WIDTH**-0.5
    scores = cap * torch.tanh(scores / cap) if cap else scores
    distance = torch.arange(total - new, total)[:, None] - torch.arange(total)
    hidden = (distance < 0) | (distance > window if window >= 0 else distance > total)
    return torch.einsum("hqk,khw->qhw", scores.masked_fill(hidden, -torch.inf).softmax(-1), values)


class Batch:
    """What a backend reads of SGLang's `ForwardBatch`."""

    def __init__(self, totals: list[int], kept: int, prefixes: list[int] | None) -> None:
        rows = len(totals)
        self.keys, self.values = torch.randn(2, SLOTS, kept, WIDTH)
        self.keys[0] = self.values[0] = float("nan")  # SGLang's slot for padding: nobody's token
        table = torch.randint(1, SLOTS, (2 * rows, LONGEST), dtype=torch.int32)
        for row in range(2 * rows):  # past its end a line of the table is stale or zero
            table[row, totals[row % rows] :] = 0
        self.totals = totals
        self.forward_mode = types.SimpleNamespace(is_decode=lambda: prefixes is None)
        self.req_to_token_pool = types.SimpleNamespace(req_to_token=table)
        self.req_pool_indices = torch.arange(rows, 2 * rows)
        self.seq_lens = torch.tensor(totals)
        if prefixes is not None:
            self.extend_prefix_lens = torch.tensor(prefixes)
            self.extend_seq_lens = self.seq_lens - self.extend_prefix_lens
        self.token_to_kv_pool = types.SimpleNamespace(
            get_kv_buffer=lambda _: (self.keys, self.values)
        )

    def of(self, row: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a row's first tokens."""
        slots = self.req_to_token_pool.req_to_token[self.req_pool_indices[row], :tokens].long()
        return self.keys[slots], self.values[slots]


KINDS = pytest.mark.parametrize(
    ("heads", "window", "cap"),
    [
        ((9, 3), -1, 0.0),
        ((4, 4), 24, 0.0),
        ((8, 1), -1, 5.0),
        ((4, 2), 24, 5.0),
        ((4, 2), 0, 0.0),
        ((4, 2), 400, 0.0),
    ],
)


def assert_attends(batch: Batch, heads: tuple[int, int], window: int, cap: float) -> None:
    from _inf.backends.verl.child.attention import CpuAttention

    layer = types.SimpleNamespace(
        tp_q_head_num=heads[0],
        tp_k_head_num=heads[1],
        qk_head_dim=WIDTH,
        v_head_dim=WIDTH,
        layer_id=0,
        scaling=WIDTH**-0.5,
        logit_cap=cap,
        sliding_window_size=window,
    )
    backend, decodes = CpuAttention(), batch.forward_mode.is_decode()
    new = [1] * len(batch.totals) if decodes else batch.extend_seq_lens.tolist()
    query = torch.randn(sum(new), heads[0], WIDTH)
    backend.init_forward_metadata(batch)
    forward = backend.forward_decode if decodes else backend.forward_extend
    found = forward(query.flatten(1), None, None, layer, batch, save_kv_cache=False)
    rows = enumerate(zip(query.split(new), batch.totals, strict=True))
    wanted = [defined(own, *batch.of(row, total), window, cap) for row, (own, total) in rows]
    assert torch.allclose(found, torch.cat(wanted).flatten(1), atol=1e-5, rtol=0)


@KINDS
@pytest.mark.parametrize(("totals", "prefixes"), BATCHES)
def test_rows_attend_each_to_its_own_tokens_up_to_the_new_one(
    totals: list[int],
    prefixes: list[int] | None,
    heads: tuple[int, int],
    window: int,
    cap: float,
) -> None:
    torch.manual_seed(0)
    assert_attends(Batch(totals, heads[1], prefixes), heads, window, cap)
