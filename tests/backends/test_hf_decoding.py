"""Rows that the backend `hf` decodes together, where memory runs out between their steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from _inf.backends.hf import decoding
from _inf.backends.hf.decoding import Decoder
from _inf.backends.hf.forward import Forward
from _inf.backends.hf.next_token import Chooser, Row
from _inf.errors import RequestFailure
from _inf.types import Limits, ModelInfo, Request, RequestOutput, SamplingParams
from tests.support.tiny import VOCABULARY, tiny_model


@pytest.fixture(scope="module")
def decoder():
    from transformers import AutoModelForCausalLM

    forward = Forward(AutoModelForCausalLM.from_pretrained(tiny_model()), 512)
    model = ModelInfo(None, frozenset(), Limits(256, 512, VOCABULARY))
    return lambda: Decoder(forward, Chooser(model, forward.device), 8, 4096, 1024)


def answered(decoder: Decoder, *later: int) -> list[RequestOutput | BaseException]:
    """Rows of 4, 8 and 12 tokens, one of 100 for each number, which comes so many hundredths of a
    second later, and one of 8 after all of these."""

    async def answer(tokens: int, after: int = 0) -> RequestOutput:
        await asyncio.sleep(after / 100)
        params = SamplingParams(max_tokens=tokens, temperature=0.0)
        request = Request([20 + tokens, 7, 9], params)
        row = Row(request, None, lambda: 0, None, asyncio.get_running_loop().create_future())
        decoder.add(row)
        return await asyncio.wait_for(row.done, 10)

    async def run() -> list[RequestOutput | BaseException]:
        serving = asyncio.ensure_future(decoder.serve())
        rows = [answer(4), answer(8), answer(12), *(answer(100, after) for after in later)]
        try:
            found = await asyncio.gather(*rows, return_exceptions=True)
            return [*found, await answer(8)]  # it goes on
        finally:
            serving.cancel()

    return asyncio.run(run())


@pytest.mark.parametrize("place", ["selected", "joined"])
def test_memory_that_runs_out_between_two_steps_fails_the_rows_that_it_was_for(
    place, decoder, monkeypatch
):
    expected = answered(decoder())
    lengths = [len(row.token_ids) for row in expected if isinstance(row, RequestOutput)]
    assert lengths == [4, 8, 12, 8]
    whole, calls = getattr(decoding, place), []

    def once(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no memory")
        return whole(*given)

    monkeypatch.setattr(decoding, place, once)
    found = answered(decoder(), *([0, 1] if place == "joined" else []))
    failed = [row for row in found if isinstance(row, RequestFailure)]
    assert failed and all("no memory" in str(row) for row in failed)
    assert found[-1] == expected[-1]


def test_rows_that_wait_end_early_too(decoder):
    async def ended() -> list[str | None]:
        own, loop = decoder(), asyncio.get_running_loop()
        request = Request([5], SamplingParams(max_tokens=5, temperature=0.0))
        rows = [Row(request, None, lambda: 0, None, loop.create_future()) for _ in range(3)]
        for row in rows:
            own.add(row)
        with own.ending():
            return [(await asyncio.wait_for(row.done, 5)).finish_reason for row in rows]

    assert asyncio.run(ended()) == ["abort"] * 3
