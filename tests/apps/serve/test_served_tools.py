"""Tools on a served model that really calls them: the caller runs them, as with OpenAI."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from openai import OpenAI

from _inf.apps.rendered_call import RenderedCall, rendered_call
from _inf.apps.serve.choice import Choice
from _inf.apps.serve.server import InferenceServer
from _inf.errors import ConfigError, ToolError
from _inf.request.grammar import json_schema_text
from _inf.response.streaming import StreamChunk
from inf import InferenceEngine
from tests.support.serve_clients import client, joined_chat, whole_chat
from tests.support.tool_calling import (
    ALOUD,
    BROKEN_JSON,
    CALCULATOR,
    GREETED,
    GREETING,
    THINKING,
    UNKNOWN_TOOL,
    answer,
    call,
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
        (question("12 * 7") + BROKEN_JSON, call("12 * 7", BROKEN_JSON), 0),
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


def test_tool_choice_none_shows_the_tools_and_finds_no_calls(openai: OpenAI) -> None:
    auto, none = (
        ask(openai, user(question("12 * 7")), tool_choice=choice) for choice in ("auto", "none")
    )
    plain = ask(openai, user(question("12 * 7")), tools=[], tool_choice="none")
    assert none.usage.prompt_tokens == auto.usage.prompt_tokens > plain.usage.prompt_tokens
    [choice] = none.choices
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert "<tool_call>" in choice.message.content and "12 * 7" in choice.message.content


@pytest.mark.parametrize("parallel", [True, False])
def test_one_call_is_kept_where_calls_may_not_be_parallel(parallel: bool, openai: OpenAI) -> None:
    text = user(question("12 * 7", "3 + 4"))
    whole = ask(openai, text, parallel_tool_calls=parallel)
    chunks = ask(openai, text, parallel_tool_calls=parallel, stream=True)
    expressions = ["12 * 7", "3 + 4"] if parallel else ["12 * 7"]
    for [choice], _ in (whole_chat(whole), joined_chat(chunks)):
        found = [json.loads(arguments)["expression"] for _, arguments in choice.calls]
        assert (found, choice.text, choice.finish_reason) == (expressions, "", "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_call_of_a_tool_that_the_request_lacks_stays_text(stream: bool, openai: OpenAI) -> None:
    answer = ask(openai, user(question("12 * 7") + UNKNOWN_TOOL), stream=stream)
    [choice], _ = joined_chat(answer) if stream else whole_chat(answer)
    assert (choice.calls, choice.finish_reason) == ([], "stop")
    assert choice.text.startswith("<tool_call>") and '"abacus"' in choice.text


def test_text_beside_a_call_has_the_calls_of_tools_that_the_request_lacks(
    caller: InferenceEngine,
) -> None:
    said = f"Aloud. {call('1 + 1', UNKNOWN_TOOL)} {call('2 + 2')}"
    served = rendered_call(caller, [user("Hi")], {"tools": TOOLS}, "auto")
    choice = Choice(served, 0)
    ids = caller.tokenizer(said)["input_ids"]
    choice.add(StreamChunk(said, ids, "stop", [0.0] * len(ids), None, {"matched_stop": None}))
    assert [each["function"]["name"] for each in choice.message["tool_calls"]] == ["calculator"]
    assert choice.message["content"] == f"Aloud.\n{call('1 + 1', UNKNOWN_TOOL)}"


def test_openais_helper_sees_where_a_streamed_call_ends(openai: OpenAI) -> None:
    [model] = openai.models.list().data
    asked = {"messages": user(question("12 * 7", "3 + 4")), "temperature": 0, "tools": TOOLS}
    with openai.chat.completions.stream(model=model.id, **asked) as stream:
        done = [each for each in stream if each.type == "tool_calls.function.arguments.done"]
    assert [each.name for each in done] == ["calculator"] * 2
    *_, calls, last = ask(openai, asked["messages"], stream=True)
    assert calls.choices[0].delta.tool_calls and calls.choices[0].finish_reason is None
    assert last.choices[0].delta.model_dump(exclude_none=True) == {}
    assert (last.choices[0].finish_reason, last.choices[0].stop_reason) == ("tool_calls", None)


def strict_calculator(**expression: Any) -> list[Any]:
    parameters = {
        "type": "object",
        "properties": {"expression": {"type": "string", **expression}},
        "required": ["expression"],
        "additionalProperties": False,
    }
    return [{"type": "function", "function": {**CALCULATOR["function"], "strict": True}
             | {"parameters": parameters}}]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("expression", "is_call"),
    [({}, True), ({"pattern": "^[0-9 *]+$"}, True), ({"pattern": "^[0-9 +]+$"}, False),
     ({"maxLength": 3}, False)],
)  # fmt: skip
def test_call_of_a_strict_tool_fits_its_schema_or_stays_text(
    stream: bool, expression: Any, is_call: bool, openai: OpenAI
) -> None:
    tools = strict_calculator(**expression)
    answer = ask(openai, user(question("12 * 7")), tools=tools, stream=stream)
    [choice], _ = joined_chat(answer) if stream else whole_chat(answer)
    assert (len(choice.calls), choice.finish_reason) == (
        (1, "tool_calls") if is_call else (0, "stop")
    )
    assert ("12 * 7" in choice.text) is not is_call


def served(caller: InferenceEngine, tools: Any, choice: Any, **more: Any) -> RenderedCall:
    return rendered_call(caller, [user("Hi")], {"tools": tools}, choice, **more)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ({"nullable": True}, r"properties\.expression\.nullable: it cannot be enforced"),
        ({"type": "str"}, r"properties\.expression\.type: 'str' is no JSON type"),
        ({"pattern": "a(?=b)"}, "llguidance"),
    ],
)
def test_schema_of_a_strict_tool_that_cannot_be_held_to_is_refused(
    expression: Any, says: str, caller: InferenceEngine
) -> None:
    for choice in ("auto", None, "required"):
        with pytest.raises(ConfigError, match=rf"^tools\[0\]\.function\.parameters[.:].*{says}"):
            served(caller, strict_calculator(**expression), choice)
    served(caller, strict_calculator(**expression), "none")


ODD = [
    {},
    {"properties": {"expression": {"type": "string"}}},
    {"type": "any"},
    {"type": "object", "properties": {"expression": {"type": "int"}}},
    {"type": "object", "properties": ["expression"]},
    {"type": "object", "strict": True, "properties": {"expression": {"type": "string"}}},
]


@pytest.mark.parametrize("parameters", ODD, ids=str)
def test_odd_schema_of_a_tool_passes_where_no_grammar_uses_it(
    parameters: Any, openai: OpenAI
) -> None:
    function = {**CALCULATOR["function"], "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    for choice in ("auto", "none"):
        answer = ask(openai, user(GREETING), tools=tools, tool_choice=choice, max_tokens=2)
        assert answer.choices[0].message.content


@pytest.mark.parametrize("parameters", [3, "x", [1]])
def test_parameters_that_are_no_object_are_refused(
    parameters: Any, caller: InferenceEngine
) -> None:
    with pytest.raises(ToolError, match=r"^tools\[0\]\.parameters: .* is not a JSON schema\.$"):
        served(caller, [{"name": "f", "parameters": parameters}], "auto")


@pytest.mark.parametrize("parameters", [ODD[0], ODD[1], ODD[5]], ids=str)
def test_forced_call_takes_a_stray_strict_and_a_missing_type(
    parameters: Any, caller: InferenceEngine
) -> None:
    forced = served(caller, [{"name": "f", "parameters": parameters}], "required")
    schema = json.loads(json_schema_text(forced.params["json_schema"]))
    assert schema["properties"]["arguments"]["type"] == "object"
    assert "strict" not in schema["properties"]["arguments"]


def test_required_gives_several_calls_where_they_may_be_parallel(
    caller: InferenceEngine, openai: OpenAI
) -> None:
    both = [CALCULATOR, {"name": "f", "parameters": {"type": "object", "properties": {}}}]
    schema = served(caller, both, "required", parallel=True).params["json_schema"]
    calls = [{"name": "calculator", "arguments": {"expression": "1"}}, {"name": "f",
             "arguments": {}}]  # fmt: skip
    jsonschema.validate(calls, json.loads(json_schema_text(schema)))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([], schema)
    for one in (None, False):
        forced = served(caller, both, "required", parallel=one)
        jsonschema.validate(calls[0], forced.params["json_schema"])

    choice = Choice(served(caller, both, "required", parallel=True), 0)
    said = json.dumps(calls)
    ids = caller.tokenizer(said)["input_ids"]
    choice.add(StreamChunk(said, ids, "stop", [0.0] * len(ids), None, {"matched_stop": None}))
    named = [(each["function"]["name"], each["function"]["arguments"])
             for each in choice.message["tool_calls"]]  # fmt: skip
    assert named == [("calculator", '{"expression": "1"}'), ("f", "{}")]
    assert choice.finish_reason == "tool_calls"

    text = user(question("12 * 7", "3 + 4"))
    asked = ask(openai, text, tool_choice="required", parallel_tool_calls=True, max_tokens=200)
    [answer], _ = whole_chat(asked)
    assert answer.calls or asked.choices[0].finish_reason == "length"
