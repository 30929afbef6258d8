"""Attention on a CPU against its definition, written out for one row at a time."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from inf import InferenceEngine

pytestmark = pytest.mark.verl

SLOTS, WIDTH, LONGEST = 2048, 16, 1000
# Each row: tokens in the cache before the step.
PREFIXES = [0, 0, 5, 300, 700, 1]
NEW = [1, 300, 7, 290, 300, 600]


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


def layer(heads: tuple[int, int], window: int, cap: float) -> Any:
    return types.SimpleNamespace(
        tp_q_head_num=heads[0],
        tp_k_head_num=heads[1],
        qk_head_dim=WIDTH,
        v_head_dim=WIDTH,
        layer_id=0,
        scaling=WIDTH**-0.5,
        logit_cap=cap,
        sliding_window_size=window,
    )


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


def attended(batch: Batch, query: torch.Tensor, kind: Any, extend: bool = False) -> torch.Tensor:
    from _inf.backends.verl.child.attention import CpuAttention

    backend = CpuAttention()
    backend.init_forward_metadata(batch)
    forward = backend.forward_extend if extend else backend.forward_decode
    return forward(query.flatten(1), None, None, layer(*kind), batch, save_kv_cache=False)


def assert_near(found: torch.Tensor, wanted: list[torch.Tensor]) -> None:
    assert torch.allclose(found, torch.cat(wanted).flatten(1), atol=1e-5, rtol=0)


@KINDS
@pytest.mark.parametrize(
    "lengths", [[5], [64] * 50, [1, 1000, 2, 999, 3, 500, 30, 31, 64, 65], [LONGEST] * 3]
)
def test_rows_that_decode_together_attend_each_to_its_own(
    lengths: list[int], heads: tuple[int, int], window: int, cap: float
) -> None:
    torch.manual_seed(0)
    batch = Batch(lengths, heads[1], None)
    query = torch.randn(len(lengths), heads[0], WIDTH)
    found = attended(batch, query, (heads, window, cap))
    rows = enumerate(lengths)
    assert_near(found, [defined(query[r, None], *batch.of(r, n), window, cap) for r, n in rows])


@KINDS
def test_new_tokens_attend_to_the_cached_prefix_and_to_what_comes_before_them(
    heads: tuple[int, int], window: int, cap: float
) -> None:
    torch.manual_seed(0)
    batch = Batch([p + n for p, n in zip(PREFIXES, NEW, strict=True)], heads[1], PREFIXES)
    query = torch.randn(sum(NEW), heads[0], WIDTH)
    found = attended(batch, query, (heads, window, cap), extend=True)
    rows = zip(query.split(NEW), batch.totals, strict=True)
    wanted = [defined(q, *batch.of(r, n), window, cap) for r, (q, n) in enumerate(rows)]
    assert_near(found, wanted)
