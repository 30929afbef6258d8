"""Calls and streams that are left end in the engine, and wrong streams do not begin. That chunks
join to the answer: `test_backends.py`, and for any tokens `tests/response/test_streaming.py`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from inf import ConfigError, GenerationTimeout, InferenceEngine, PromptError
from tests.support.refusals import refused
from tests.support.schedulers import in_flight, load, slow_down
from tests.support.scripts import until


@pytest.fixture
def slow(local):
    """With a tenth of a second for each token: no answer here ends before it is aborted."""
    slow_down(local, 0.1)
    yield local
    slow_down(local, 0.0)


def is_idle(engine: InferenceEngine) -> bool:
    """Long before the 12.8 s that the 128 tokens of an answer would take."""

    def computes() -> bool:
        if engine.config.rollout.name == "hf":
            return any(batch.rows for batch in engine._backend.decoder._batches)
        return load(engine) != (0, 0)

    return until(lambda: in_flight(engine) == 0 and not computes(), 6.0)


def leave(chunks: Any) -> None:
    for _ in chunks:
        break


def fail(chunks: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in chunks:
            raise ZeroDivisionError


async def leave_async(engine: InferenceEngine) -> None:
    async for _ in engine.astream("go on", **LONG):
        break


async def cancel(engine: InferenceEngine) -> None:
    call = asyncio.ensure_future(engine.agenerate("go on", **LONG))
    while not in_flight(engine):
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def late(call: Callable[[], object]) -> None:
    with pytest.raises(GenerationTimeout, match="^timeout: "):
        call()


LONG = {"max_tokens": 128, "ignore_eos": True}
LATE = {**LONG, "timeout": 0.3}
WAYS: dict[str, Callable[[InferenceEngine], object]] = {
    "break": lambda engine: leave(engine.stream("go on", **LONG)),
    "exception": lambda engine: fail(engine.stream("go on", **LONG)),
    "garbage": lambda engine: next(engine.stream("go on", **LONG)),
    "async break": lambda engine: asyncio.run(leave_async(engine)),
    "async cancelled": lambda engine: asyncio.run(cancel(engine)),
    "timeout of a stream": lambda engine: late(
        lambda: [*engine.stream("go on", **LONG, timeout=0.3)]
    ),
    "timeout": lambda engine: late(lambda: engine.generate("go on", **LATE)),
}


@pytest.mark.parametrize("way", WAYS)
def test_call_that_is_left_ends_in_the_engine_which_answers_the_next(slow, way):
    WAYS[way](slow)
    gc.collect()
    assert is_idle(slow)
    assert slow.generate("go on", max_tokens=4).metadata[0]["completion_tokens"] == 4


def test_a_wrong_call_is_refused_before_the_first_chunk(tiny):
    for call in (tiny.stream, tiny.astream):
        for prompts in (["a", "b"], []):
            with pytest.raises(PromptError):
                call(prompts)
        for name, value in {"n": 2, "prompt_logprobs": 2, "temperature": -1}.items():
            with refused(ConfigError, key=name):
                call("a", **{name: value})
