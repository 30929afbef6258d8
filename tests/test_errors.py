"""Exceptions say what they are about: a key, a prompt, a row; also in another process."""

from __future__ import annotations

import pickle

import pytest

from _inf.errors import (
    ConfigError,
    EngineDeadError,
    GenerationTimeout,
    InferenceError,
    PromptError,
    PromptTooLongError,
    RequestFailure,
    at_fault,
)

KINDS = (ConfigError, PromptTooLongError, RequestFailure, EngineDeadError, GenerationTimeout)


@pytest.mark.parametrize("kind", KINDS)
def test_exception_keeps_its_facts_in_another_process(kind: type[InferenceError]) -> None:
    failure = kind("Something is wrong.", key="a.b", index=1, row=2)
    again = pickle.loads(pickle.dumps(failure))
    assert type(again) is kind and str(again) == "Something is wrong."
    assert vars(again) == vars(failure) == {"key": "a.b", "index": 1, "row": 2}


def test_fact_that_was_said_first_stays() -> None:
    with pytest.raises(ConfigError, match="^a.b: it is wrong$") as raised:
        with at_fault(key="a", index=4):
            raise ConfigError.of("a.b", "it is wrong")
    assert (raised.value.key, raised.value.index) == ("a.b", 4)


def test_caller_of_one_prompt_is_not_told_its_number() -> None:
    assert PromptError("prompt 0 is empty", index=0).for_one_prompt() == "the prompt is empty"
    assert PromptError("prompt 1 is empty", index=1).for_one_prompt() == "prompt 1 is empty"
