"""Streams: chunks that join to the answer, stops that do not leak, and requests that end."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from inf import ConfigError, GenerationTimeout, InferenceEngine, PromptError


def waits_until_idle(engine: InferenceEngine, seconds: float) -> bool:
    states = engine.rollout._engine.tokenizer_manager.rid_to_state
    end = time.monotonic() + seconds
    while states and time.monotonic() < end:
        time.sleep(0.02)
    return not states


def test_joined_increments_equal_the_whole(engine):
    prompt = "Write one sentence about a robot, with 😀 in it."
    whole = engine.generate(prompt, max_tokens=48)
    chunks = list(engine.stream(prompt, max_tokens=48))
    assert "".join(chunk.text for chunk in chunks) == whole.completions[0]
    assert [i for chunk in chunks for i in chunk.token_ids] == whole.token_ids[0]
    assert chunks[-1].finish_reason == whole.metadata[0]["finish_reason"]
    assert all(chunk.finish_reason is None for chunk in chunks[:-1])
    assert len(chunks) > 10
    read, ids = "", []
    for chunk in chunks[:-1]:  # at any time the text is that of the ids
        read, ids = read + chunk.text, ids + chunk.token_ids
        assert read == engine.tokenizer.decode(ids, clean_up_tokenization_spaces=False)


def test_a_stop_string_does_not_leak_into_a_stream(engine):
    prompt = "Count from one to ten in words."
    whole = engine.generate(prompt, max_tokens=48).completions[0]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 7]
    stopped = engine.generate(prompt, max_tokens=48, stop=stop)
    chunks = list(engine.stream(prompt, max_tokens=48, stop=[stop, "never this"]))
    assert stopped.completions[0] == whole[: whole.index(stop)]
    assert "".join(chunk.text for chunk in chunks) == stopped.completions[0]
    assert chunks[-1].finish_reason == "stop"


@pytest.mark.parametrize("way", ["break", "exception", "garbage"])
def test_an_abandoned_stream_is_aborted_in_the_engine(tiny, way):
    chunks = tiny.stream("go on", max_tokens=128, ignore_eos=True)
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
    assert waits_until_idle(tiny, 1.0)
    assert tiny.generate("go on", max_tokens=4).metadata[0]["completion_tokens"] == 4


def test_many_streams_run_beside_a_batch(tiny):
    prompts = [f"stream number {i}" for i in range(8)]
    alone = tiny.generate(prompts, max_tokens=24)
    texts: dict[int, str] = {}

    def read(place: int) -> None:
        chunks = tiny.stream(prompts[place], max_tokens=24)
        texts[place] = "".join(chunk.text for chunk in chunks)

    threads = [threading.Thread(target=read, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    batch = tiny.generate([f"row {i}" for i in range(64)], max_tokens=32, ignore_eos=True)
    for thread in threads:
        thread.join(60)
    assert [texts[place] for place in range(8)] == alone.completions
    assert {m["completion_tokens"] for m in batch.metadata} == {32}


def test_astream_gives_the_same_chunks_in_async_code(tiny):
    async def read(place: int) -> str:
        chunks = tiny.astream(f"prompt {place}", max_tokens=16)
        return "".join([chunk.text async for chunk in chunks])

    async def read_all() -> list[str]:
        return await asyncio.gather(*map(read, range(6)))

    alone = tiny.generate([f"prompt {i}" for i in range(6)], max_tokens=16).completions
    assert asyncio.run(read_all()) == alone


def test_an_abandoned_astream_is_aborted(tiny):
    async def first() -> None:
        async for _ in tiny.astream("go on", max_tokens=128, ignore_eos=True):
            break

    asyncio.run(first())
    assert waits_until_idle(tiny, 1.0)


def test_a_stream_past_its_timeout_is_aborted(tiny):
    with pytest.raises(GenerationTimeout):
        for _ in tiny.stream("go on", max_tokens=128, ignore_eos=True, timeout=0.05):
            time.sleep(0.01)
    assert waits_until_idle(tiny, 1.0)


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        (["a", "b"], {}, PromptError),
        ([], {}, PromptError),
        ("a", {"n": 2}, ConfigError),
        ("a", {"prompt_logprobs": 2}, ConfigError),
        ("a", {"temperature": -1}, ConfigError),
        ("", {}, PromptError),
    ],
)
def test_a_wrong_call_is_refused_before_the_first_chunk(tiny, prompt, params, error):
    with pytest.raises(error):
        tiny.stream(prompt, **params)
    with pytest.raises(error):
        tiny.astream(prompt, **params)
