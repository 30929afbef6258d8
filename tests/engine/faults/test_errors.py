"""A call that is wrong ends in one of our exceptions, and the running engine never hears of it.

What is wrong, and what is said of it, is tested in `tests/request/`; here it goes through the
public API.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from inf import ConfigError, PromptError
from tests.support.refusals import refused
from tests.support.tiny import VOCABULARY

LONG = {"prompt_token_ids": [5] * 513}
FULL = {"prompt_token_ids": [5] * 512}
ROBOT = [{"role": "robot", "content": "hi"}]
WRONG_PROMPTS = [None, ROBOT, "a\ud800", {"prompt_token_ids": [5, VOCABULARY]}, LONG]
# The last four kill SGLang's scheduler or the caller where they arrive.
WRONG_KEYWORDS = {
    "max_tokens": 0,
    "temprature": 0.5,
    "stop_token_ids": [VOCABULARY],
    "seed": [1] * 5,
    "json_schema": {"type": "x"},
    "on_error": np.array([1, 2]),
    "top_k": 2**31,
    "temperature": 10**400,
    "stop": "\ud800",
    "repetition_penalty": 1e-320,
}


class Reached(Exception):
    """A request came as far as the engine."""


@pytest.fixture
def guarded(tiny, monkeypatch):
    """The tiny engine with its door shut: whatever is sent to it raises `Reached`."""

    async def shut(*args: Any, **kwargs: Any) -> None:
        raise Reached

    monkeypatch.setattr(tiny.rollout._engine, "async_generate", shut)
    return tiny


@pytest.mark.verl
def test_wrong_call_is_refused_and_sends_nothing(guarded):
    with pytest.raises(Reached):
        guarded.generate(["hi", FULL], top_p=[0.5, None], max_tokens=[600, 128])
    before = guarded.stats()
    for prompt in WRONG_PROMPTS:
        batch = ["hi", {"prompt_token_ids": [5]}, prompt]
        for call in (guarded.generate, lambda batch: asyncio.run(guarded.agenerate(batch))):
            with refused(PromptError, index=2):
                call(batch)
    for name, value in WRONG_KEYWORDS.items():
        params = {name: value}
        key = "stop_token_ids[0]" if name == "stop_token_ids" else name
        for prompts in (["hi", "hi"], []):  # an empty batch hides nothing
            with refused(ConfigError, key=key):
                guarded.generate(prompts, **params)
    with refused(ConfigError, key="top_p", index=2):
        guarded.generate(["hi"] * 3, top_p=[0.5, None, 2])
    for max_tokens in (129, [128, 600, 129]):  # with the prompt one more than the limit
        with refused(PromptError, index=2):
            guarded.generate(["hi", "hi", FULL], max_tokens=max_tokens)
    output = guarded.generate([], n=3)
    assert len(output) == 0 and output.completions == output.metadata == []
    assert guarded.stats() == before


def test_extreme_values_inside_the_ranges_are_answered(tiny):
    greedy = tiny.generate("hi", max_tokens=4, temperature=0).token_ids
    for params in (
        {"temperature": 5e-324},
        {"temperature": 1e-6},
        {"temperature": 1.0, "top_p": 5e-324},
        {"temperature": 1.0, "min_p": 1},
        {"temperature": 100.0, "top_k": 1},
    ):
        assert tiny.generate("hi", max_tokens=4, **params).token_ids == greedy  # type: ignore[misc]
    for params in (
        {"temperature": 1e39},  # no float32
        {"temperature": 1.0, "top_k": 2**31 - 1},
        {"temperature": 1.0, "presence_penalty": -2, "frequency_penalty": 2},
        {"stop_token_ids": list(range(VOCABULARY)), "ignore_eos": True},
        {"temperature": 1.0, "seed": 2**63 - 1},
        {"temperature": 1.0, "repetition_penalty": 1e39},
        {"stop": ["x"] * 1000 + ["é" * 3000]},
        {"min_tokens": 4},
    ):
        answered = tiny.generate("hi", max_tokens=4, **params)  # type: ignore[misc]
        assert all(math.isfinite(logprob) for logprob in answered.logprobs[0])
