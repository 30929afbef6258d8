"""Tools on a served model that really calls them: the caller runs them, as with OpenAI."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

from _inf.apps.serve.server import InferenceServer
from tests.support.serve_clients import client, joined_chat, whole_chat
from tests.support.tool_calling import (
    ALOUD,
    BROKEN_JSON,
    CALCULATOR,
    GREETED,
    GREETING,
    THINKING,
    answer,
    question,
)

pytestmark = pytest.mark.engine
TOOLS: list[Any] = [CALCULATOR]


@pytest.fixture(scope="module")
def openai(caller_server: InferenceServer) -> OpenAI:
    return client(caller_server)


def ask(openai: OpenAI, messages: Any, **more: Any) -> Any:
    [model] = openai.models.list().data
    return openai.chat.completions.create(
        model=model.id, messages=messages, temperature=0, **{"tools": TOOLS, **more}
    )


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_caller_runs_the_tool_and_the_model_goes_on(openai: OpenAI) -> None:
    messages = user(question("12 * 7"))
    choice = ask(openai, messages).choices[0]
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    [call] = choice.message.tool_calls
    assert call.function.name == "calculator"
    assert json.loads(call.function.arguments) == {"expression": "12 * 7"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "84"}
    last = ask(openai, [*messages, choice.message, result]).choices[0]
    assert (last.message.content, last.finish_reason) == (answer("84"), "stop")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (question("12 * 7"), "", 1),
        (question("12 * 7", "3 + 4"), "", 2),
        (question("12 * 7") + ALOUD, THINKING, 1),
        (question("12 * 7") + BROKEN_JSON, "", 1),
        (GREETING, GREETED, 0),
    ],
)
def test_stream_with_tools_joins_to_the_whole_response(
    text: str, content: str, calls: int, openai: OpenAI
) -> None:
    more: dict[str, Any] = {"extra_body": {"return_token_ids": True}, "logprobs": True}
    whole = whole_chat(ask(openai, user(text), **more))
    chunks = list(ask(openai, user(text), stream=True, **more))
    assert joined_chat(chunks) == whole
    [choice], _ = whole
    assert (choice.text, len(choice.calls)) == (content, calls)
    assert choice.finish_reason == ("tool_calls" if calls else "stop")


def test_text_streams_before_its_call(openai: OpenAI) -> None:
    chunks = list(ask(openai, user(question("12 * 7") + ALOUD), stream=True))
    texts = [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content]
    assert len(texts) > 1 and "".join(texts) == THINKING


def test_calls_cut_by_a_limit_are_text(openai: OpenAI) -> None:
    choice = ask(openai, user(question("12 * 7")), max_tokens=6).choices[0]
    assert choice.finish_reason == "length" and choice.message.tool_calls is None
    assert "<tool_call>" in choice.message.content


def test_tool_choice_none_shows_no_tools(openai: OpenAI) -> None:
    plain = ask(openai, user(question("12 * 7")), tools=[], tool_choice="none")
    hidden = ask(openai, user(question("12 * 7")), tool_choice="none")
    assert hidden.choices[0].message == plain.choices[0].message
    assert hidden.choices[0].finish_reason == "stop"
