"""The next tokens of rows that the backend `hf` computes together."""

from __future__ import annotations

import asyncio

import pytest
import torch

from _inf.backends.hf.next_token import Chooser, Row
from _inf.errors import InferenceError
from _inf.parts.sampling_mask import SamplingMask
from _inf.types import Limits, ModelInfo, Request, SamplingParams

WIDTH = 100


@pytest.mark.parametrize(
    "params",
    [{}, {"top_p": 0.9}, {"top_k": 5, "seed": 3}, {"top_p": 0.9, "parts": (SamplingMask(True),)}],
    ids=str,
)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_row_of_broken_numbers_fails_alone(params, broken):
    sampled = SamplingParams(max_tokens=8, temperature=1.0, **params)
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    logits = torch.randn(4, WIDTH)
    logits[1, 7] = broken
    model = ModelInfo(None, frozenset(), Limits(8, 16, WIDTH))
    chooser = Chooser(model, torch.device("cpu"))

    async def choose() -> list[Row]:
        rows = [
            Row(Request([5], params, row=number), None, lambda: 0, model, asyncio.Future())
            for number, params in enumerate((sampled, sampled, sampled, greedy))
        ]
        chooser.choose(logits, rows)
        return rows

    rows = asyncio.run(choose())
    assert [row.done.done() for row in rows] == [False, True, False, False]
    with pytest.raises(InferenceError, match="Row 1 of this call has the log prob nan"):
        rows[1].done.result()
    assert all(0 <= row.token_ids[0] < WIDTH for row in rows)
