"""Where an engine is used from: the main thread, others, async code.

The same question gets the same answer everywhere. A notebook, with a loop of its own, is in
`test_examples.py`; a script on stdin, without a `__main__` guard, in `test_forks.py`; an engine
that async code on a thread starts and leaves, in `test_lifecycle.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from inf import InferenceEngine

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "timeout": 60}
PROMPTS = [f"What is {number} apples and 7?" for number in range(20)]

Answers = list[list[int]]


@pytest.fixture(scope="module")
def answers(tiny: InferenceEngine) -> Answers:
    """One to each of `PROMPTS`, by the main thread; they differ."""
    answers = [tiny.generate(prompt, **GREEDY).token_ids[0] for prompt in PROMPTS]
    assert len({tuple(each) for each in answers}) > 10
    return answers


def run(work: Coroutine[Any, Any, Answers]) -> Answers:
    """`asyncio.run` with a timeout."""
    return asyncio.run(asyncio.wait_for(work, 120))


def test_thread_of_the_callers_generates(tiny: InferenceEngine, answers: Answers) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        output = thread.submit(tiny.generate, PROMPTS, **GREEDY).result(120)
    assert output.token_ids == answers


def test_two_threads_at_once_each_get_their_own_answers(
    tiny: InferenceEngine, answers: Answers
) -> None:
    together = threading.Barrier(2, timeout=60)

    def ask(prompts: list[str]) -> Answers:
        together.wait()
        return [tiny.generate(prompt, **GREEDY).token_ids[0] for prompt in prompts]

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        odd, even = threads.submit(ask, PROMPTS[1::2]), threads.submit(ask, PROMPTS[::2])
    assert odd.result() == answers[1::2]
    assert even.result() == answers[::2]


def test_generate_inside_a_running_event_loop(tiny: InferenceEngine, answers: Answers) -> None:
    async def work() -> Answers:
        return tiny.generate(PROMPTS, **GREEDY).token_ids

    assert run(work()) == answers


def test_awaited_agenerate_leaves_the_loop_to_others(
    tiny: InferenceEngine, answers: Answers
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async def work() -> Answers:
        counting = asyncio.ensure_future(count())
        output = await tiny.agenerate(PROMPTS, **GREEDY)
        counting.cancel()
        return output.token_ids

    assert run(work()) == answers
    assert turns > 10


def test_twenty_agenerate_at_once_each_get_their_own_answer(
    tiny: InferenceEngine, answers: Answers
) -> None:
    async def work() -> Answers:
        outputs = await asyncio.gather(*(tiny.agenerate(prompt, **GREEDY) for prompt in PROMPTS))
        return [output.token_ids[0] for output in outputs]

    assert run(work()) == answers


def test_asyncio_run_twice_with_one_engine(tiny: InferenceEngine, answers: Answers) -> None:
    async def work() -> Answers:
        return (await tiny.agenerate(PROMPTS, **GREEDY)).token_ids

    assert run(work()) == run(work()) == answers
