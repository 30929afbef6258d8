"""Streams: chunks that join to the answer, stops that do not leak, and requests that end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from inf import ConfigError, GenerationTimeout, InferenceEngine, PromptError
from tests.support.schedulers import in_flight, slow_down
from tests.support.scripts import until


@pytest.fixture
def slow(tiny: InferenceEngine) -> Iterator[InferenceEngine]:
    """`tiny` with a tenth of a second for each token: no answer here ends before it is aborted."""
    slow_down(tiny, 0.1)
    yield tiny
    slow_down(tiny, 0.0)


def is_idle(engine: InferenceEngine) -> bool:
    """Idle long before the 12.8 s that the 128 tokens of an answer would take."""
    return until(lambda: not in_flight(engine), 6.0)


def test_text_of_the_chunks_is_at_any_time_that_of_their_ids(engine: InferenceEngine) -> None:
    prompt = "Write one sentence about a robot, with 😀 in it."
    whole = engine.generate(prompt, max_tokens=48)
    chunks = list(engine.stream(prompt, max_tokens=48))
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    assert len(chunks) > 10
    read, ids = "", list[int]()
    for chunk in chunks[:-1]:
        read, ids = read + chunk.text, ids + chunk.token_ids
        assert read == engine.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert read + chunks[-1].text == whole.completions[0]


@pytest.mark.parametrize("way", ["break", "exception", "garbage"])
def test_an_abandoned_stream_is_aborted_in_the_engine(slow: InferenceEngine, way: str) -> None:
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


def test_an_abandoned_astream_is_aborted(slow: InferenceEngine) -> None:
    async def first() -> None:
        async for _ in slow.astream("go on", max_tokens=128, ignore_eos=True):
            break

    asyncio.run(first())
    assert is_idle(slow)


def test_a_stream_past_its_timeout_is_aborted(slow: InferenceEngine) -> None:
    with pytest.raises(GenerationTimeout):
        for _ in slow.stream("go on", max_tokens=128, ignore_eos=True, timeout=0.3):
            pass
    assert is_idle(slow)


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        (["a", "b"], {}, PromptError),
        ([], {}, PromptError),
        ("a", {"n": 2}, ConfigError),
        ("a", {"prompt_logprobs": 2}, ConfigError),
        ("a", {"temperature": -1}, ConfigError),
    ],
)
def test_a_wrong_call_is_refused_before_the_first_chunk(
    tiny: InferenceEngine, prompt: Any, params: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        tiny.stream(prompt, **params)
    with pytest.raises(error):
        tiny.astream(prompt, **params)
