"""Attention of a decoding batch against SGLang's own, which goes through the rows one by one."""

from __future__ import annotations

import types

import pytest
import torch

from inf import InferenceEngine

PLACES, WIDTH, LONGEST = 2048, 16, 1000


@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize(
    "lengths", [[5], [64] * 50, [1, 1000, 2, 999, 3, 500, 30, 31, 64, 65], [LONGEST] * 3]
)
def test_rows_together_equal_rows_one_by_one(
    lengths: list[int], heads: tuple[int, int], tiny: InferenceEngine
) -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    from _inf.upstream.attention import attend, groups

    torch.manual_seed(0)
    asking, kept = heads
    rows = len(lengths)
    keys, values = torch.randn(2, PLACES, kept, WIDTH)
    keys[0] = values[0] = float("nan")  # SGLang's place for padding: nobody's token
    table = torch.randint(1, PLACES, (2 * rows, LONGEST), dtype=torch.int32)
    for row in range(2 * rows):  # past its end a line of the table is stale or zero
        table[row, lengths[row % rows] :] = 0
    pool = torch.arange(rows, 2 * rows)
    seq_lens = torch.tensor(lengths)
    query = torch.randn(rows, asking, WIDTH)
    given = (keys, values, table, pool, seq_lens)
    how = {"scaling": WIDTH**-0.5, "enable_gqa": asking != kept, "causal": False}

    wanted = TorchNativeAttnBackend._run_sdpa_forward_decode(
        types.SimpleNamespace(), query, torch.empty_like(query), *given, **how
    )
    backend = types.SimpleNamespace(forward_metadata=groups(table, pool, seq_lens))
    found = attend(backend, query, torch.empty_like(query), *given, **how)
    assert torch.allclose(found, wanted, atol=1e-5, rtol=0)
    assert sorted(int(row) for each in backend.forward_metadata for row in each.rows) == list(
        range(rows)
    )
