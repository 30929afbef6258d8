"""Many calls on one engine: no call waits for a whole batch, and the row limit is kept."""

from __future__ import annotations

import asyncio
import time

import pytest

from inf import InferenceEngine
from tests.support.running import begun
from tests.support.schedulers import in_flight, load
from tests.support.scripts import until

ROWS = 400
# Long enough that a busy machine's caller sees an answer before the next rows have ended.
BATCH = {"prompts": ["One"] * ROWS, "max_tokens": 480, "ignore_eos": True}


TINY = {"max_tokens": 2, "ignore_eos": True}


async def chat(engine: InferenceEngine) -> object:
    return (await engine.agenerate("Two", **TINY)).token_ids


async def stream(engine: InferenceEngine) -> object:
    return [chunk async for chunk in engine.astream("Two", **TINY)]


async def score(engine: InferenceEngine) -> object:
    return await asyncio.to_thread(engine.get_logprobs, "Two", " three")


@pytest.mark.parametrize("ask", [chat, stream, score])
def test_call_after_a_batch_does_not_wait_for_it(tiny, ask):
    """One row of the batch must end first; with it may end all that run beside it."""

    async def ask_after_a_batch() -> int:
        batch = asyncio.ensure_future(tiny.agenerate(**BATCH))
        while in_flight(tiny) < ROWS:
            await asyncio.sleep(0.01)
        try:
            assert await asyncio.wait_for(ask(tiny), 60)
            return ROWS - in_flight(tiny)
        finally:
            batch.cancel()

    assert asyncio.run(ask_after_a_batch()) <= 2 * tiny.config.rollout.max_num_seqs
    assert until(lambda: not in_flight(tiny), 10)


def test_batch_goes_on_beside_a_chat_that_never_pauses(tiny):
    async def talk() -> None:
        while True:
            await chat(tiny)

    async def talk_beside_a_batch() -> None:
        talkers = [asyncio.ensure_future(talk()) for _ in range(40)]
        try:
            await asyncio.wait_for(tiny.agenerate(["One"] * 32, max_tokens=8, ignore_eos=True), 60)
        finally:
            for task in talkers:
                task.cancel()

    asyncio.run(talk_beside_a_batch())
    assert until(lambda: not in_flight(tiny), 10)


def test_no_more_rows_run_at_once_than_max_num_seqs(tiny):
    at_once, seen = tiny.config.rollout.max_num_seqs, []
    batch = begun(lambda: tiny.generate(**BATCH | {"max_tokens": 40}))
    while not batch.done():
        seen.append(load(tiny))
    batch.result()
    assert max(running for running, _ in seen) == at_once < max(waiting for _, waiting in seen)


def test_rows_that_wait_start_at_once_when_all_that_run_end_together(tiny):
    """SGLang 0.5.9 would sleep for a second between two groups of rows."""
    at_once, groups = tiny.config.rollout.max_num_seqs, 6

    def seconds(rows: int, calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            tiny.generate(["One"] * rows, max_tokens=3, ignore_eos=True, progress=False)
        return time.perf_counter() - start

    seconds(at_once, 1)
    one_by_one = seconds(at_once, groups)
    pause = 2.5  # of a garbage collection; the sleeps would be five seconds
    assert seconds(at_once * groups, 1) < 3 * one_by_one + pause
