"""Exceptions say what they are about: a key, a prompt, a row; also in another process."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from _inf.backends.base import check_finite
from _inf.config import load_config
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    GenerationTimeout,
    InferenceError,
    PromptError,
    PromptTooLongError,
    RequestFailure,
    ToolError,
    at_fault,
)
from _inf.request.prompts import normalize
from _inf.request.sampling import ANY_MODEL, resolve

KINDS = (ConfigError, PromptTooLongError, RequestFailure, EngineDeadError, GenerationTimeout)


def asked(prompts: int = 1, **params: Any) -> Any:
    return resolve(params, load_config(None, {}).rollout, prompts, ANY_MODEL)


@pytest.mark.parametrize(
    ("call", "kind", "facts"),
    [
        (lambda: asked(temprature=1), ConfigError, {"key": "temprature"}),
        (lambda: asked(2, top_p=[1, 2]), ConfigError, {"key": "top_p", "index": 1}),
        (lambda: asked(tools=[3]), ToolError, {"key": "tools"}),
        (
            lambda: load_config(None, {"rollout": {"top_k": "x"}}),
            ConfigError,
            {"key": "rollout.top_k"},
        ),
        (lambda: load_config("no/such.yaml", {}), ConfigError, {}),
        (lambda: normalize(["Hi", [{"role": "user"}]]), PromptError, {"index": 1}),
        (lambda: check_finite([0.0, float("nan")], 3), RequestFailure, {"row": 3}),
    ],
)
def test_exception_says_what_it_is_about(
    call: Callable[[], object], kind: type[InferenceError], facts: dict[str, Any]
) -> None:
    with pytest.raises(kind) as raised:
        call()
    wanted = {"key": None, "index": None, "row": None} | facts
    assert {name: getattr(raised.value, name) for name in wanted} == wanted


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
