"""Streams whose readers leave them end in the engine, and wrong ones do not begin. That chunks join
to the answer: `test_backends.py`, and for any tokens `tests/response/test_streaming.py`."""

from __future__ import annotations

import asyncio
import gc

import pytest

from inf import ConfigError, GenerationTimeout, InferenceEngine, PromptError
from tests.support.refusals import refused
from tests.support.schedulers import in_flight, slow_down
from tests.support.scripts import until


@pytest.fixture
def slow(local):
    """With a tenth of a second for each token: no answer here ends before it is aborted."""
    slow_down(local, 0.1)
    yield local
    slow_down(local, 0.0)


def is_idle(engine: InferenceEngine) -> bool:
    """Idle long before the 12.8 s that the 128 tokens of an answer would take."""
    return until(lambda: not in_flight(engine), 6.0)


@pytest.mark.parametrize("way", ["break", "exception", "garbage"])
def test_an_abandoned_stream_is_aborted_in_the_engine(slow, way):
    chunks = slow.stream("go on", max_tokens=128, ignore_eos=True)
    next(chunks)
    if way == "exception":
        with pytest.raises(ZeroDivisionError):
            for _ in chunks:
                raise ZeroDivisionError
    elif way == "break":
        for _ in chunks:
            break
    del chunks
    gc.collect()
    assert is_idle(slow)
    assert slow.generate("go on", max_tokens=4).metadata[0]["completion_tokens"] == 4


def test_an_abandoned_astream_is_aborted(slow):
    async def first() -> None:
        async for _ in slow.astream("go on", max_tokens=128, ignore_eos=True):
            break

    asyncio.run(first())
    assert is_idle(slow)


def test_a_stream_past_its_timeout_is_aborted(slow):
    with pytest.raises(GenerationTimeout):
        for _ in slow.stream("go on", max_tokens=128, ignore_eos=True, timeout=0.3):
            pass
    assert is_idle(slow)


def test_a_wrong_call_is_refused_before_the_first_chunk(tiny):
    for call in (tiny.stream, tiny.astream):
        for prompts in (["a", "b"], []):
            with pytest.raises(PromptError):
                call(prompts)
        for name, value in {"n": 2, "prompt_logprobs": 2, "temperature": -1}.items():
            with refused(ConfigError, key=name):
                call("a", **{name: value})
