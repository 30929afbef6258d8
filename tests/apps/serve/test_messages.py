"""Anthropic's Messages are chats in another form: the same prompts, answers and traces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from _inf.apps.serve.message_blocks import call_input
from _inf.apps.serve.message_bodies import CountBody, MessagesBody
from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.scripted_thoughts import Speaker

SAID = "<think>\nThe capital?\n</think>\n\nIt is Paris."
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
BAD_CALL = '<tool_call>\n{"name": "look", "arguments": [1]}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
ASK: list[Any] = [{"role": "user", "content": "What is the capital?"}]


def post(server: InferenceServer, path: str = "/messages", **fields: Any) -> Any:
    """path: below `/v1`, or from a session's name on."""
    name, _, path = path.rpartition("/")
    url = server.session_url(name) if name else server.base_url
    body = {"max_tokens": 200, "messages": ASK} | fields
    return httpx.post(f"{url}/{path}", json=body, timeout=60)


def asked(server: InferenceServer, path: str = "/messages", **fields: Any) -> Any:
    response = post(server, path, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def events(text: str) -> list[Any]:
    """The events of a stream; each says its name twice."""
    found = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def joined(found: list[Any]) -> Any:
    """The message that a stream's events make, as Anthropic's page on them says."""
    first, ping, *rest, delta, stop = found
    message = first["message"]
    assert (first["type"], ping["type"]) == ("message_start", "ping")
    assert (delta["type"], stop["type"]) == ("message_delta", "message_stop")
    block: Any = None
    for event in rest:
        match event["type"]:
            case "content_block_start":
                assert block is None and event["index"] == len(message["content"])
                block, partial = event["content_block"], ""
            case "content_block_stop":
                if block["type"] == "tool_use":
                    block["input"] = json.loads(partial)
                message["content"].append(block)
                block = None
            case "content_block_delta":
                kind, value = [*event["delta"].items()][1]
                if kind == "partial_json":
                    partial += value
                else:
                    block[kind] += value
    assert block is None
    return message | delta["delta"] | {"usage": delta["usage"]}


# ─── Answers ───


@pytest.mark.parametrize(
    ("said", "kinds", "reason"),
    [
        (SAID, ["thinking", "text"], "end_turn"),
        (f"<think>Look.</think>So:\n{CALL}", ["thinking", "text", "tool_use"], "tool_use"),
        (f"{CALL}\n{CALL}", ["tool_use", "tool_use"], "tool_use"),
        (BAD_CALL, ["tool_use"], "tool_use"),
        ("Paris. " * 200, ["text"], "max_tokens"),
    ],
)
def test_stream_joins_to_the_whole_message(
    speaker: Speaker, server: InferenceServer, said: str, kinds: list[str], reason: str
) -> None:
    speaker.says(said)
    whole = asked(server, tools=[TOOL])
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == reason
    stream = joined(events(post(server, tools=[TOOL], stream=True).text))
    for message in (whole, stream):
        assert message.pop("id").startswith("msg_")
        for block in message["content"]:
            block.pop("id", None)
    assert stream == whole
    assert (whole["type"], whole["role"]) == ("message", "assistant")
    assert whole["usage"]["output_tokens"] == min(len(speaker.answer), 200)


def test_stop_sequence_is_named(speaker: Speaker, server: InferenceServer) -> None:
    speaker.says("It is")
    speaker.stop_reason = "Paris"
    try:
        whole = asked(server, stop_sequences=["Paris"])
    finally:
        speaker.stop_reason = None
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "Paris")


@pytest.mark.parametrize("said", [SAID, CALL])
def test_aborted_answer_is_an_error(speaker: Speaker, server: InferenceServer, said: str) -> None:
    speaker.says(said, ends="abort")
    whole = post(server, tools=[TOOL])
    assert (whole.status_code, whole.json()["error"]["type"]) == (503, "overloaded_error")
    assert "paused" in whole.json()["error"]["message"]
    stream = post(server, tools=[TOOL], stream=True)
    if stream.status_code == 503:  # the whole answer came as the first chunk
        assert stream.json() == whole.json()
    else:
        first, *_, last = events(stream.text)
        assert (first["type"], last) == ("message_start", whole.json())


def test_answer_that_repeats_itself_was_cut(speaker: Speaker, server: InferenceServer) -> None:
    speaker.says("Paris.", ends="repetition")
    assert asked(server)["stop_reason"] == "max_tokens"
    stream = joined(events(post(server, stream=True).text))
    assert stream["stop_reason"] == "max_tokens"


def test_limit_above_the_models_context_is_cut_to_it(
    speaker: Speaker, server: InferenceServer
) -> None:
    """Claude Code asks for 32,000 tokens, whatever the model."""
    speaker.says("Paris. " * 5000)
    whole = asked(server, max_tokens=32_000)
    assert whole["stop_reason"] == "model_context_window_exceeded"
    usage = whole["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert prompt + usage["output_tokens"] == 4000
    refused = post(server, messages=[{"role": "user", "content": "Paris. " * 5000}])
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("prompt is too long: ")


# ─── Prompts ───


def test_blocks_are_rendered_as_the_chats_messages(
    speaker: Speaker, server: InferenceServer
) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "Look.", **cached}
    call = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}, **cached}
    thought = {"type": "thinking", "thinking": "Where?", "signature": "any"}
    result = {"type": "tool_result", "tool_use_id": "call_1", "is_error": True}
    history = [
        {"role": "user", "content": [text, text]},
        {"role": "assistant", "content": [thought, text, call]},
        {"role": "user", "content": [{**result, "content": [text]}, text]},
        {"role": "system", "content": "Be brief."},
    ]
    speaker.says("Yes.")
    system = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", **cached}]
    whole = asked(server, messages=history, system=system, tools=[{**TOOL, **cached}])
    [prompt] = speaker.prompts
    function = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
    assert json.loads(prompt.partition("\n")[0]) == {"type": "function", "function": function}
    assert prompt.partition("\n")[2] == (
        "<|im_start|>system\nOne.\n\nTwo.<|im_end|>\n"
        "<|im_start|>user\nLook.\n\nLook.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nWhere?\n</think>\n\nLook.\n"
        '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nError: Look.<|im_end|>\n"
        "<|im_start|>user\nLook.<|im_end|>\n"
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    about = {"messages": history, "system": system, "tools": [TOOL]}
    counted = httpx.post(f"{server.base_url}/messages/count_tokens", json=about)
    usage = whole["usage"]
    prompt_tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted.json() == {"input_tokens": prompt_tokens}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
    ],
)
def test_tool_choices_are_those_of_chats(choice: Any, expected: Any) -> None:
    sent = {"model": "m", "max_tokens": 1, "messages": ASK, "tools": [TOOL]}
    chat = MessagesBody.model_validate({**sent, "tool_choice": choice}).chat("")
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == (expected, None)
    alone = {**sent, "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    assert MessagesBody.model_validate(alone).chat("")["parallel_tool_calls"] is False


def test_fields_of_newer_clients_are_taken() -> None:
    format = {"type": "json_schema", "schema": SCHEMA}
    tool = {**TOOL, "input_examples": [{"at": 1}]}
    sent = {"messages": ASK, "max_tokens": 9, "tools": [tool], "output_format": format}
    chat = MessagesBody.model_validate(sent).chat("")
    assert chat["json_schema"] == SCHEMA
    assert chat["tools"][0]["function"].keys() == {"name", "description", "parameters"}


def test_thinking_and_effort_reach_the_templates_that_read_them() -> None:
    about = {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
    body = CountBody.model_validate({"messages": ASK, **about})
    read = body.asked("{% if enable_thinking %}")["chat_template_kwargs"]
    assert read == {"enable_thinking": False}
    assert body.asked("{{ messages }}")["chat_template_kwargs"] is None


# ─── Sessions ───


def test_conversation_is_one_trace_of_the_sampled_ids(
    speaker: Speaker, server: InferenceServer
) -> None:
    """Of a client that sends back the blocks it got: thoughts, and a call that is no JSON object,
    too."""
    said = [f"<think>Look.</think>So:\n{CALL}", BAD_CALL, SAID]
    speaker.says(*said)
    messages, ids = list(ASK), list[int]()
    for _ in said:
        answer = asked(server, "exact/messages", messages=messages, tools=[TOOL])
        ids += speaker.answer
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": "saw"} for call in calls
        ]
        messages += [{"role": "assistant", "content": answer["content"]}]
        messages += [{"role": "user", "content": results or "Thanks."}]
    [trace] = server.traces("exact")
    pairs = zip(trace.token_ids, trace.response_mask, strict=True)
    assert [token for token, sampled in pairs if sampled] == ids
    assert [message["role"] for message in trace.messages] == [
        *["user", "assistant", "tool", "assistant", "tool", "assistant"]
    ]
    assert call_input("[1]") == {"invalid_json": "[1]"}


def test_empty_thought_of_a_client_is_none(speaker: Speaker, server: InferenceServer) -> None:
    speaker.says("Paris.")
    [said] = asked(server, "empty/messages")["content"]
    blocks = [{"type": "thinking", "thinking": "", "signature": ""}, said]
    asked(server, "empty/messages", messages=[*ASK, {"role": "assistant", "content": blocks}, *ASK])
    [trace] = server.traces("empty")
    assert len(trace.finish_reasons) == 2


def test_two_forms_may_be_one_conversation(speaker: Speaker, server: InferenceServer) -> None:
    speaker.says("Paris.")
    asked(server, "mixed/messages")
    more = [*ASK, {"role": "assistant", "content": "Paris."}, *ASK]
    url = f"{server.session_url('mixed')}/chat/completions"
    httpx.post(url, json={"messages": more, "max_tokens": 200}).raise_for_status()
    [trace] = server.traces("mixed")
    assert len(trace.finish_reasons) == 2


# ─── Refusals ───

FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "messages.0.user.content.type: 'image'",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"messages": [*ASK, {"role": "assistant", "content": "It"}]}, "cannot begin the answer"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_man"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: it is missing"),
        ({"max_tokens": 0}, "max_tokens"),
        (
            {"output_format": {"type": "json_schema", "schema": {"type": "no"}}},
            "output_format.schema",
        ),
        (
            {"output_format": FORMAT, "output_config": {"format": FORMAT}},
            "output_config.format is set too",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "0.text.text: it is mis"),
        ({"messages": [{"role": "user", "content": "a", "at": 1}]}, "messages.0.user.at: unknown"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    fields: Any, named: str, server: InferenceServer
) -> None:
    response = post(server, **fields)
    assert response.status_code == 400
    error = response.json()
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert named in error["error"]["message"]


def test_key_may_be_in_anthropics_header(spoken: tuple[Speaker, InferenceEngine]) -> None:
    speaker, engine = spoken
    speaker.says("Yes.")
    with engine.serve(api_key="secret") as server:
        url, body = f"{server.base_url}/messages", {"max_tokens": 9, "messages": ASK}
        for headers in (
            {"x-api-key": "secret"},
            {"Authorization": "Bearer secret"},
            {"Authorization": "bearer secret", "x-api-key": "dummy"},
            {"Authorization": "Bearer dummy", "x-api-key": "secret"},
        ):
            assert httpx.post(url, json=body, headers=headers).status_code == 200
        refused = httpx.post(url, json=body, headers={"x-api-key": "other"})
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        root = server.base_url.removesuffix("/v1")
        for path in ("", "/sessions/any"):
            assert httpx.head(f"{root}{path}").status_code == 200


def test_another_model_is_not_found(server: InferenceServer) -> None:
    response = post(server, model="another")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"
