"""Tools on a served model that really calls them: the caller runs them, as with OpenAI. That
streams join to the whole response: `test_streamed_calls.py`, `test_reasoning.py`."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from _inf.apps.rendered_call import RenderedCall, rendered_call
from _inf.apps.serve.choice import Choice
from _inf.errors import ConfigError
from _inf.parts.grammars.schemas import json_schema_text
from _inf.response.streaming import StreamChunk
from inf import InferenceEngine
from tests.support.serve_clients import choices_of, client, user
from tests.support.tool_calling import (
    CALCULATOR,
    UNKNOWN_TOOL,
    call,
    question,
)

TOOLS = [CALCULATOR]


@pytest.fixture(scope="module")
def openai(caller_server):
    return client(caller_server)


def ask(openai: OpenAI, text: Any, **more: Any) -> Any:
    [model] = openai.models.list().data
    messages = [user(text)] if isinstance(text, str) else text
    return openai.chat.completions.create(
        model=model.id, messages=messages, temperature=0, **{"tools": TOOLS, **more}
    )


def served(caller: InferenceEngine, tools: Any, choice: Any, **more: Any) -> RenderedCall:
    return rendered_call(caller, [[user("Hi")]], {"tools": tools}, choice, **more)


def choice_of(caller: InferenceEngine, call: RenderedCall, said: str) -> Choice:
    """A choice whose whole answer is known."""
    choice, ids = Choice(call, 0), caller.tokenizer(said)["input_ids"]
    choice.add(StreamChunk(said, ids, "stop", [0.0] * len(ids), None, {"matched_stop": None}))
    return choice


def test_tool_choice_none_shows_the_tools_and_finds_no_calls(openai):
    text = question("12 * 7")
    auto, none = (ask(openai, text, tool_choice=choice) for choice in ("auto", "none"))
    plain = ask(openai, text, tools=[], tool_choice="none")
    assert none.usage.prompt_tokens == auto.usage.prompt_tokens > plain.usage.prompt_tokens
    [choice] = none.choices
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert "<tool_call>" in choice.message.content and "12 * 7" in choice.message.content
    [cut] = ask(openai, text, max_tokens=6).choices
    assert cut.finish_reason == "length" and "<tool_call>" in cut.message.content


def test_one_call_is_kept_where_calls_may_not_be_parallel(openai):
    asked = {"parallel_tool_calls": False, "stream": True}
    [choice] = choices_of(ask(openai, question("12 * 7", "3 + 4"), **asked))
    assert choice.calls == [("calculator", json.dumps({"expression": "12 * 7"}))]
    assert (choice.text, choice.finish_reason) == ("", "tool_calls")


def test_text_beside_a_call_has_the_calls_of_tools_that_the_request_lacks(caller):
    said = f"Aloud. {call('1 + 1', UNKNOWN_TOOL)} {call('2 + 2')}"
    message = choice_of(caller, served(caller, TOOLS, "auto"), said).message
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["calculator"]
    assert message["content"] == f"Aloud.\n{call('1 + 1', UNKNOWN_TOOL)}"


def test_openais_helper_sees_where_a_streamed_call_ends(openai):
    [model] = openai.models.list().data
    messages = [user(question("12 * 7", "3 + 4"))]
    asked = {"model": model.id, "messages": messages, "temperature": 0, "tools": TOOLS}
    with openai.chat.completions.stream(**asked) as stream:
        done = [each for each in stream if each.type == "tool_calls.function.arguments.done"]
    assert [each.name for each in done] == ["calculator"] * 2


# ─── Strict tools and forced calls ───


def strict_calculator(**expression: Any) -> list[Any]:
    parameters = {"properties": {"expression": {"type": "string", **expression}}}
    return [{"name": "calculator", "strict": True, "parameters": parameters}]


@pytest.mark.parametrize(
    ("expression", "calls"), [({"pattern": "^[0-9 *]+$"}, 1), ({"maxLength": 3}, 0)]
)
def test_call_of_a_strict_tool_fits_its_schema_or_stays_text(expression, calls, openai):
    tools = strict_calculator(**expression)
    [choice] = choices_of(ask(openai, question("12 * 7"), tools=tools))
    assert (len(choice.calls), "12 * 7" in choice.text) == (calls, not calls)
    assert choice.finish_reason == ("tool_calls" if calls else "stop")


def test_schema_of_a_strict_tool_that_cannot_be_held_to_is_refused(caller):
    for expression, says in (
        ({"nullable": True}, r"properties\.expression\.nullable: it cannot be enforced"),
        ({"pattern": "a(?=b)"}, "llguidance"),
    ):
        said = rf"^tools\[0\]\.function\.parameters[.:].*{says}"
        for choice in ("auto", None, "required"):
            with pytest.raises(ConfigError, match=said):
                served(caller, strict_calculator(**expression), choice)
        served(caller, strict_calculator(**expression), "none")


STRING = {"properties": {"expression": {"type": "string"}}}


def test_odd_schema_of_a_tool_passes_where_no_grammar_uses_it(caller):
    for parameters in ({"type": "any"}, {"type": "object", "properties": ["x"]}):
        for choice in ("auto", "none"):
            served(caller, [{"name": "f", "parameters": parameters}], choice)


def test_forced_call_takes_a_stray_strict_and_a_missing_type(caller):
    for parameters in ({}, STRING, {"strict": True, **STRING}):
        forced = served(caller, [{"name": "f", "parameters": parameters}], "required")
        schema = json.loads(json_schema_text(forced.params["json_schema"]))
        assert schema["properties"]["arguments"]["type"] == "object"
        assert "strict" not in schema["properties"]["arguments"]


def test_required_gives_several_calls_where_they_may_be_parallel(caller):
    both = [CALCULATOR, {"name": "f", "parameters": {"type": "object", "properties": {}}}]
    forced = served(caller, both, "required", parallel=True)
    schema = json.loads(json_schema_text(forced.params["json_schema"]))
    calls = [{"name": "calculator", "arguments": {"expression": "1"}}]
    calls.append({"name": "f", "arguments": {}})
    jsonschema.validate(calls, schema)
    choice = choice_of(caller, forced, json.dumps(calls))
    named = [each["function"] for each in choice.message["tool_calls"]]
    assert named == [{**each, "arguments": json.dumps(each["arguments"])} for each in calls]
