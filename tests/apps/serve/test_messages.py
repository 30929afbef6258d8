"""Anthropic's Messages are chats in another form, also through the `anthropic` package: the same
prompts, answers and traces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from _inf.apps.serve.message_bodies import MessagesBody
from _inf.backends.openai.http import httpx
from tests.support.scripted_thoughts import BAD_CALL, CALL, SAID, THOUGHT_CALL, sampled
from tests.support.serve_clients import CHAT, KEY, MESSAGES, Http, user
from tests.support.tool_calling import answer, question

SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
TOOL = {"name": "look", "description": "Looks.", "input_schema": SCHEMA}
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
ASK = [user("What is the capital?")]
BODY = {"max_tokens": 200, "messages": ASK}


@pytest.fixture(scope="module")
def http(server):
    return Http(server)


@pytest.fixture(scope="module")
def anthropic():
    return pytest.importorskip("anthropic", reason="the package comes with SGLang")


def connected(anthropic: Any, http: Http) -> Any:
    return anthropic.Anthropic(base_url=http.root, api_key=KEY, max_retries=0)


# ─── Answers ───


@pytest.mark.parametrize(
    ("said", "ends", "kinds", "reason"),
    [
        (SAID, "stop", ["thinking", "text"], "end_turn"),
        (THOUGHT_CALL, "stop", ["thinking", "text", "tool_use"], "tool_use"),
        (f"{CALL}\n{BAD_CALL}", "stop", ["tool_use", "tool_use"], "tool_use"),
        ("Paris. " * 200, "stop", ["text"], "max_tokens"),
        ("Paris.", "repetition", ["text"], "max_tokens"),
    ],
)
def test_stream_joins_to_the_whole_message(speaker, http, anthropic, said, ends, kinds, reason):
    """As the package joins it."""
    speaker.says(said, ends=ends)
    api = connected(anthropic, http).messages
    asked = {**BODY, "model": "some-model", "tools": [TOOL]}
    whole = api.create(**asked).to_dict()
    with api.stream(**asked) as events:
        stream = events.get_final_message().to_dict()
    assert [block["type"] for block in whole["content"]] == kinds
    assert (whole["stop_reason"], whole["type"], whole["role"]) == (reason, "message", "assistant")
    assert whole["usage"]["output_tokens"] == min(len(speaker.answer), 200)
    for message in (whole, stream):
        assert message.pop("id").startswith("msg_")
        for block in message["content"]:
            block.pop("id", None)
            block.pop("parsed_output", None)
    assert {name: stream[name] for name in whole} == whole


def test_stop_sequence_is_named(speaker, http, monkeypatch):
    speaker.says("It is")
    monkeypatch.setattr(speaker, "stop_reason", "Paris")
    whole = http.post(MESSAGES, **BODY, stop_sequences=["Paris"])
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "Paris")


@pytest.mark.parametrize("said", [SAID, CALL])
def test_aborted_answer_is_an_error(speaker, http, said):
    speaker.says(said, ends="abort")
    whole = http.post(MESSAGES, 503, **BODY, tools=[TOOL])
    assert whole["error"]["type"] == "overloaded_error" and "paused" in whole["error"]["message"]
    stream = http.send(MESSAGES, **BODY, tools=[TOOL], stream=True)
    if stream.status_code == 503:  # the whole answer came as the first chunk
        assert stream.json() == whole
    else:
        assert json.loads(stream.text.rstrip().rpartition("data: ")[2]) == whole


def test_limit_above_the_models_context_is_cut_to_it(speaker, http):
    """Claude Code asks for 32,000 tokens, whatever the model."""
    speaker.says("Paris. " * 5000)
    whole = http.post(MESSAGES, **BODY | {"max_tokens": 32_000})
    assert whole["stop_reason"] == "model_context_window_exceeded"
    usage = whole["usage"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert prompt + usage["output_tokens"] == 4000
    refused = http.post(MESSAGES, 400, **BODY | {"messages": [user("Paris. " * 5000)]})
    assert refused["error"]["message"].startswith("prompt is too long: ")


# ─── Prompts ───


def test_blocks_are_rendered_as_the_chats_messages(speaker, http):
    cached = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": "Look.", **cached}
    call = {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}, **cached}
    thought = {"type": "thinking", "thinking": "Where?", "signature": "any"}
    result = {"type": "tool_result", "tool_use_id": "call_1", "is_error": True}
    about = {
        "messages": [
            {"role": "user", "content": [text, text]},
            {"role": "assistant", "content": [thought, text, call]},
            {"role": "user", "content": [{**result, "content": [text]}, text]},
            {"role": "system", "content": "Be brief."},
        ],
        "system": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two.", **cached}],
        "tools": [{**TOOL, **cached, "input_examples": [{"at": 1}]}],
    }
    speaker.says("Yes.")
    usage = http.post(MESSAGES, max_tokens=200, **about)["usage"]
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
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert http.post(f"{MESSAGES}/count_tokens", **about) == {"input_tokens": tokens}


def test_fields_are_those_of_chats():
    named = {"type": "function", "function": {"name": "look"}}
    for kind, expected in {
        "auto": "auto",
        "any": "required",
        "none": "none",
        "tool": named,
    }.items():
        for alone, parallel in ((False, None), (True, False)):
            choice = {"type": kind, "name": "look", "disable_parallel_tool_use": alone}
            sent = {**BODY, "tools": [TOOL], "output_format": FORMAT, "tool_choice": choice}
            sent |= {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}
            body = MessagesBody.model_validate(sent)
            chat = body.said("{{ reasoning_effort }}")
            assert (chat["tool_choice"], chat["parallel_tool_calls"]) == (expected, parallel)
            assert chat["json_schema"] == FORMAT["schema"]
            assert chat["chat_template_kwargs"] == {"reasoning_effort": "high"}
            read = body.said("{% if enable_thinking %}")["chat_template_kwargs"]
            assert read == {"enable_thinking": False}


# ─── Sessions ───


def test_conversation_is_one_trace_of_the_sampled_ids(speaker, server):
    """Of a client that sends back the blocks it got: thoughts, an empty one, and a call that is no
    JSON object, too. The last answer is asked for as a chat."""
    said = [THOUGHT_CALL, BAD_CALL, SAID, "Paris."]
    speaker.says(*said)
    http, messages, ids = Http(server, "exact"), list(ASK), list[int]()
    for _ in said[1:]:
        answer = http.post(MESSAGES, **BODY | {"messages": messages, "tools": [TOOL]})
        ids += speaker.answer
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": "saw"} for call in calls
        ]
        empty = {"type": "thinking", "thinking": "", "signature": ""}
        messages += [{"role": "assistant", "content": [*answer["content"], empty]}]
        messages += [{"role": "user", "content": results or "Thanks."}]
        if calls:
            assert calls[0]["input"] in ({"at": 1}, {"invalid_json": BAD_CALL})
    [trace] = server.traces("exact")
    assert sampled(trace) == ids
    roles = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [message["role"] for message in trace.messages] == roles
    speaker.says("Paris.")
    mixed = Http(server, "mixed")
    mixed.post(MESSAGES, **BODY)
    told = [*ASK, {"role": "assistant", "content": "Paris."}, *ASK]
    mixed.post(CHAT, **BODY | {"messages": told})
    [trace] = server.traces("mixed")
    assert len(trace.finish_reasons) == 2


@pytest.mark.engine
def test_tool_runner_of_the_package_runs_a_tool(anthropic, caller_server):
    """The runner asks for a conversation that the server stores, and then sends the whole one."""

    @anthropic.beta_tool
    def calculator(expression: str) -> str:
        """The calculator.

        Args:
            expression: The expression.
        """
        return {"12 * 7": "84"}[expression]

    api = connected(anthropic, Http(caller_server, "runner"))
    [model] = api.models.list()
    asked = {"model": model.id, "max_tokens": 64, "messages": [user(question("12 * 7"))]}
    final = api.beta.messages.tool_runner(**asked, tools=[calculator]).until_done()
    assert [block.text for block in final.content] == [answer("84")]
    [trace] = caller_server.traces("runner")
    assert trace.finish_reasons == ["tool_calls", "stop"]


# ─── Refusals ───

IMAGE = {"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}


def test_what_would_change_the_answer_is_refused_by_name(http):
    for said, named in (
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "content.0.image.source.type: must be 'base64",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, "web_search_20250305"),
        ({"messages": [*ASK, {"role": "assistant", "content": "It"}]}, "cannot begin the answer"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_man"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: it is missing"),
        ({"output_format": FORMAT, "output_config": {"format": FORMAT}}, "format is set too"),
        ({"messages": [{"role": "user", "content": "a", "at": 1}]}, "messages.0.user.at: unknown"),
    ):
        error = http.post(MESSAGES, 400, **BODY | said)
        assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
        assert named in error["error"]["message"]
    found = http.post(MESSAGES, 404, **BODY, model="another")
    assert found["error"]["type"] == "not_found_error"


def test_key_may_be_in_anthropics_header(spoken):
    speaker, engine = spoken
    speaker.says("Yes.")
    with engine.serve(api_key="secret") as server:
        http = Http(server).client
        for headers, status in (
            ({"x-api-key": "secret"}, 200),
            ({"Authorization": "Bearer secret"}, 200),
            ({"Authorization": "bearer secret", "x-api-key": "dummy"}, 200),
            ({"Authorization": "Bearer dummy", "x-api-key": "secret"}, 200),
            ({"x-api-key": "other"}, 401),
        ):
            answer = http.post(MESSAGES, json=BODY, headers=headers)
            assert answer.status_code == status
        assert answer.json()["error"]["type"] == "authentication_error"
        for path in ("/", "/sessions/any"):
            assert httpx.head(Http(server).root + path).status_code == 200
