"""`prompt_length` bounds a served conversation's first turn only, `max_model_len` all of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.serve_clients import client, joined_chat, whole_chat

pytestmark = pytest.mark.engine


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ask(openai: OpenAI, messages: Any, **params: Any) -> Any:
    [model] = openai.models.list().data
    extra = {"return_token_ids": True} | params.pop("extra_body", {})
    return openai.chat.completions.create(
        model=model.id, messages=messages, extra_body=extra, **params
    )


def of_length(tiny: InferenceEngine, tokens: int, before: list[Any]) -> list[Any]:
    """The messages with one more by a user, rendered to so many tokens."""
    render = functools.partial(
        tiny.tokenizer.apply_chat_template, add_generation_prompt=True, return_dict=False
    )
    text = "Go "
    while len(render([*before, user(text)])) < tokens:
        text += "é" if len(render([*before, user(text + "é")])) <= tokens else "!"
    assert len(render([*before, user(text)])) == tokens
    return [*before, user(text)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("role", ["assistant", "tool"])
def test_prompt_length_bounds_first_turns_only(
    stream: bool, role: str, tiny: InferenceEngine, tiny_client: OpenAI
) -> None:
    limits = tiny.model.limits
    later = [user("Hi"), {"role": role, "content": "Hello", "tool_call_id": "a"}]
    for before, most in (([], limits.prompt), (later, limits.total - 2)):
        fits = ask(tiny_client, of_length(tiny, most, before), max_tokens=2, stream=stream)
        choices, prompt = joined_chat(fits) if stream else whole_chat(fits)
        assert len(prompt) == most and choices[0].ids
        with pytest.raises(BadRequestError) as refused:
            ask(tiny_client, of_length(tiny, most + 1, before), max_tokens=2, stream=stream)
        assert refused.value.code == "context_length_exceeded"
        limit = limits.total if before else limits.prompt
        assert f" {most + 1} tokens" in str(refused.value) and f" {limit} " in str(refused.value)


def test_ids_that_go_on_from_an_answer_are_a_later_turn(
    tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    limits, url = tiny.model.limits, tiny_server.session_url("long")
    complete = functools.partial(
        client(tiny_server, base_url=url).completions.create,
        model=tiny.config.model_name,
        max_tokens=2,
        extra_body={"return_token_ids": True},
    )
    ids = [7] * limits.prompt
    answer: Any = complete(prompt=ids)
    ids += answer.choices[0].token_ids + [8]
    answer = complete(prompt=ids)
    [trace] = tiny_server.traces("long")
    whole = trace.prompt_token_ids + trace.token_ids
    assert whole == ids + answer.choices[0].token_ids and len(whole) > limits.prompt
    for prompt in ([8, *ids[1:]], ids + [8] * (limits.total - len(ids))):
        with pytest.raises(BadRequestError) as refused:
            complete(prompt=prompt)
        assert refused.value.code == "context_length_exceeded"
    httpx.delete(url.removesuffix("/v1")).raise_for_status()


def test_later_turn_is_cut_only_where_its_answer_would_not_fit(
    tiny: InferenceEngine, tiny_client: OpenAI
) -> None:
    limits, before = tiny.model.limits, [user("Hi"), {"role": "assistant", "content": "Hello"}]
    long = of_length(tiny, limits.total + 9, before)
    rollout = tiny.config.rollout
    for asked, room in ({"max_tokens": 3}, 3), ({}, rollout.response_length):
        extra = {"truncate_prompt": "left", "stop_token_ids": [*range(384)]}  # one token
        answer = ask(tiny_client, long, **asked, extra_body=extra)
        _, prompt = whole_chat(answer)
        rendered = tiny.tokenizer.apply_chat_template(
            long, add_generation_prompt=True, return_dict=False
        )
        assert prompt == rendered[-(limits.total - room) :]
