"""Where an engine is used from: the main thread, others, async code. Answers are the same.

What all backends do alike, threads and tasks of one event loop, is in `test_backends.py`. A
notebook, with a loop of its own, is in `test_examples.py`; a script on stdin, without a `__main__`
guard, in `test_forks.py`; an engine that async code on a thread starts, in `test_lifecycle.py`.
"""

from __future__ import annotations

import asyncio
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


def test_loops_are_answered_alike_and_an_awaited_call_leaves_each_to_others(
    tiny: InferenceEngine, answers: Answers
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async def work() -> Answers:
        assert tiny.generate(PROMPTS, **GREEDY).token_ids == answers
        counting = asyncio.ensure_future(count())
        outputs = await asyncio.gather(*(tiny.agenerate(prompt, **GREEDY) for prompt in PROMPTS))
        counting.cancel()
        return [output.token_ids[0] for output in outputs]

    for _ in range(2):
        assert asyncio.run(asyncio.wait_for(work(), 120)) == answers
    assert turns > 10
