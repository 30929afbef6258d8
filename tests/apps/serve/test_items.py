"""OpenAI's Responses are chats in another form, through the `openai` package: the same prompts,
answers and traces."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from _inf.apps.serve.item_bodies import ItemsBody, ItemsChat
from _inf.apps.serve.server import InferenceServer
from tests.support.scripted_thoughts import Speaker
from tests.support.serve_clients import client
from tests.support.tool_calling import CALCULATOR, GREETED, GREETING, answer, question

SAID = "<think>\nThe capital?\n</think>\n\nIt is Paris."
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "+a\\n"}}\n</tool_call>'
SPAWN = '<tool_call>\n{"name": "agents__spawn", "arguments": {}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
LOOK: Any = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
TOOLS: list[Any] = [
    LOOK,
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "start: /./"}},
    {"type": "namespace", "name": "agents", "tools": [{**LOOK, "name": "spawn"}]},
]
ASK = "What is the capital?"
KEPT: Any = {"include": ["reasoning.encrypted_content"], "store": False}


def create(openai: OpenAI, **fields: Any) -> Any:
    model = openai.models.list().data[0].id
    return openai.responses.create(**({"model": model, "input": ASK} | fields))


def without_ids(response: Any) -> Any:
    """What is the same of two responses."""
    about = response.to_dict(warnings=False)  # of tools that it does not know
    for name in ("id", "created_at"):
        del about[name]
    for item in about["output"]:
        del item["id"]
        item.pop("call_id", None)
    return about


def checked(events: list[Any]) -> Any:
    """The response that a stream ends in; each item is what its events say."""
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    *rest, last = events[2:]
    texts: dict[int, str] = {}
    done: list[Any] = []
    for event in rest:
        assert event.output_index == len(done)
        if event.type.endswith(".delta"):
            texts[len(done)] = texts.get(len(done), "") + event.delta
        elif event.type == "response.output_item.done":
            done.append(event.item)
        if hasattr(event, "item_id"):
            item_id = event.item_id
    assert done == last.response.output and (not done or done[-1].id == item_id)
    for index, item in enumerate(done):
        text = getattr(item, "arguments", None) or getattr(item, "input", None)
        assert texts[index] == (text or item.content[0].text)
    return last.response


# ─── Answers ───


@pytest.mark.parametrize(
    ("said", "kinds", "status"),
    [
        (SAID, ["reasoning", "message"], "completed"),
        (
            f"<think>Look.</think>So:\n{CALL}",
            ["reasoning", "message", "function_call"],
            "completed",
        ),
        (PATCH, ["custom_tool_call"], "completed"),
        (SPAWN, ["function_call"], "completed"),
        ("Paris. " * 200, ["message"], "incomplete"),
    ],
)
def test_stream_ends_in_the_whole_response(
    speaker: Speaker, server: InferenceServer, said: str, kinds: list[str], status: str
) -> None:
    speaker.says(said)
    fields: Any = {"tools": TOOLS, "max_output_tokens": 200, **KEPT}
    whole = create(client(server), **fields)
    assert [item.type for item in whole.output] == kinds and whole.status == status
    assert whole.usage.output_tokens == min(len(speaker.answer), 200)
    stream = checked([*create(client(server), **fields, stream=True)])
    assert without_ids(stream) == without_ids(whole)
    if status == "incomplete":
        assert whole.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("said", [SAID, PATCH])
def test_aborted_answer_is_an_error(speaker: Speaker, server: InferenceServer, said: str) -> None:
    speaker.says(said, ends="abort")
    fields: Any = {"tools": TOOLS, "max_output_tokens": 200}
    with pytest.raises(openai.InternalServerError, match="paused") as refused:
        create(client(server), **fields)
    assert refused.value.status_code == 503
    try:
        *_, failed, error = create(client(server), **fields, stream=True)
    except openai.InternalServerError as at_once:  # the whole answer came as the first chunk
        assert at_once.status_code == 503
    else:
        assert (failed.type, failed.response.status) == ("response.failed", "failed")
        assert error.type == "error" and "paused" in error.message


def test_answer_that_repeats_itself_is_incomplete(
    speaker: Speaker, server: InferenceServer
) -> None:
    speaker.says("Paris.", ends="repetition")
    whole = create(client(server))
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert checked([*create(client(server), stream=True)]).status == "incomplete"


def test_calls_have_the_names_of_their_tools(speaker: Speaker, server: InferenceServer) -> None:
    speaker.says(PATCH, SPAWN)
    [patch] = create(client(server), tools=TOOLS).output
    assert (patch.name, patch.input) == ("patch", "+a\n")
    [spawn] = create(client(server), tools=TOOLS).output
    assert (spawn.name, spawn.namespace) == ("spawn", "agents")
    assert "start: /./" in speaker.prompts[-1]  # the grammar, which only the model reads


# ─── Prompts ───


def test_items_are_rendered_as_the_chats_messages(
    speaker: Speaker, server: InferenceServer
) -> None:
    def text(role: str, said: str, kind: str = "input_text") -> Any:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": said}]}

    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at": 1}'}
    items = [
        text("developer", "Two."),
        {"role": "user", "content": "Look."},
        {"type": "reasoning", "summary": [], "encrypted_content": "unencrypted:Where?"},
        text("assistant", "Look.", "output_text"),
        call,
        {"type": "function_call_output", "call_id": "call_1", "output": "saw"},
        text("developer", "Be brief."),
        text("user", "Go on."),
    ]
    speaker.says("Yes.")
    create(client(server), input=items, instructions="One.")
    assert speaker.prompts == [
        "<|im_start|>system\nOne.\n\nTwo.<|im_end|>\n"
        "<|im_start|>user\nLook.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nWhere?\n</think>\n\nLook.\n"
        '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\nsaw<|im_end|>\n"
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n"
        "<|im_start|>assistant\n"
    ]


def test_fields_are_those_of_chats() -> None:
    schema = {"type": "object", "properties": {}}
    format = {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    sent = {
        "input": ASK,
        "text": {"format": format},
        "tools": [LOOK],
        "tool_choice": {"type": "function", "name": "look"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "max_output_tokens": 7,
    }
    chat = ItemsBody.model_validate(sent).chat("{{ reasoning_effort }}")
    assert chat["json_schema"] == schema and chat["max_tokens"] == 7
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert chat["chat_template_kwargs"] == {"reasoning_effort": "low"}


def test_keywords_of_chats_have_their_effect(server: InferenceServer) -> None:
    sent = {"top_k": 5, "repetition_penalty": 1.1, "seed": 4, "frequency_penalty": 0.5, "stop": "x"}
    body = ItemsBody.model_validate(
        {"input": ASK, **sent, "chat_template_kwargs": {"a": 1}, "reasoning": {"effort": "low"}}
    )
    chat = ItemsChat.of(body, "{{ reasoning_effort }}").keywords()
    assert sent.items() <= chat.items()
    assert chat["chat_template_kwargs"] == {"reasoning_effort": "low", "a": 1}


@pytest.mark.parametrize("said", [SAID, f"<think>Look.</think>So 日😀:\n{CALL}", "日😀"])
def test_log_probs_are_those_of_the_text(
    said: str, speaker: Speaker, server: InferenceServer
) -> None:
    speaker.says(said)
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "tools": TOOLS}
    whole = create(client(server), **asked)
    events = [*create(client(server), **asked, stream=True)]
    [text] = [item.content[0] for item in whole.output if item.type == "message"]
    assert "".join(each.token for each in text.logprobs).strip() == text.text.strip()
    assert {len(each.top_logprobs) for each in text.logprobs} == {2}
    assert (
        bytes(sum((each.bytes for each in text.logprobs), [])).decode().strip() == text.text.strip()
    )
    done = [event for event in events if event.type == "response.output_text.done"]
    assert [each.token for each in done[0].logprobs] == [each.token for each in text.logprobs]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    listed = [each.token for event in deltas for each in event.logprobs]
    assert listed == [each.token for each in text.logprobs]
    assert without_ids(checked(events)) == without_ids(whole)
    for more in ({"top_logprobs": 2}, {"include": []}):
        plain = create(client(server), **more)
        assert [i.content[0].logprobs for i in plain.output if i.type == "message"] == [[]]


# ─── Sessions ───


@pytest.mark.parametrize("stream", [False, True])
def test_conversation_is_one_trace_of_the_sampled_ids(
    stream: bool, speaker: Speaker, server: InferenceServer
) -> None:
    """Of a client that sends back the items it got."""
    said = [f"<think>Look.</think>So:\n{CALL}", PATCH, f"<think>And</think>{SPAWN}", SAID]
    speaker.says(*said)
    name = f"items-{stream}"
    openai = client(server, base_url=server.session_url(name))
    items: list[Any] = [{"role": "user", "content": ASK}]
    ids = list[int]()
    for _ in said:
        answer = create(openai, input=items, tools=TOOLS, stream=stream, **KEPT)
        answer = checked([*answer]) if stream else answer
        ids += speaker.answer
        for item in answer.output:
            items.append(item.to_dict())
            if item.type == "reasoning":
                del items[-1]["content"]  # as Codex does
            if item.type.endswith("call"):
                about = {"type": f"{item.type}_output", "call_id": item.call_id}
                items.append({**about, "output": "saw"})
    [trace] = server.traces(name)
    pairs = zip(trace.token_ids, trace.response_mask, strict=True)
    assert [token for token, sampled in pairs if sampled] == ids
    assert len(trace.finish_reasons) == len(said)


# ─── Refusals ───


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: nothing is stored"),
        ({"extra_body": {"conversation": "c"}}, "conversation: nothing is stored"),
        ({"store": True}, "store"),
        (
            {"tools": [{"type": "code_interpreter", "container": "c"}]},
            "tools.type: .*'code_interpreter'",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "type: 'input_image'",
        ),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.type: 'item_reference'"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "encrypted"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"extra_body": {"n": 2}}, "n: unknown"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a"}}},
            "text.format.schema: it is miss",
        ),
        ({"tools": [LOOK, {**LOOK, "description": "Looks."}]}, "the name 'look' is taken"),
        (
            {"tools": [{"type": "custom", "name": "agents__spawn"}, *TOOLS[2:]]},
            "the name 'agents__spawn' is taken",
        ),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(
    fields: Any, named: str, server: InferenceServer
) -> None:
    with pytest.raises(openai.BadRequestError, match=named):
        create(client(server), **fields)


def test_tool_that_is_left_out_is_named_in_a_header(
    speaker: Speaker, server: InferenceServer
) -> None:
    """Codex always sends it."""
    speaker.says("Yes.")
    raw = client(server).responses.with_raw_response
    tools: list[Any] = [{"type": "web_search", "external_web_access": False}, LOOK]
    for stream in (False, True):
        answer = raw.create(model="some-model", input=ASK, tools=tools, stream=stream)
        assert "web_search" in answer.headers["warning"]
    plain = raw.create(model="some-model", input=ASK, tools=[LOOK])
    assert "warning" not in plain.headers


# ─── A real model ───


@pytest.mark.engine
def test_tool_runs_and_the_conversation_is_one_trace(caller_server: InferenceServer) -> None:
    openai = client(caller_server, base_url=caller_server.session_url("responses"))
    assert create(openai, input=GREETING).output_text == GREETED
    tool: Any = {"type": "function", "strict": False, **CALCULATOR["function"]}
    items: list[Any] = [{"role": "user", "content": question("12 * 7")}]
    [call] = create(openai, input=items, tools=[tool]).output
    assert json.loads(call.arguments) == {"expression": "12 * 7"}
    items += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "84"}]
    with openai.responses.stream(
        model=openai.models.list().data[0].id, input=items, tools=[tool]
    ) as stream:
        stream.until_done()
        assert stream.get_final_response().output_text == answer("84")
    greeted, called = caller_server.traces("responses")
    assert (len(greeted.finish_reasons), len(called.finish_reasons)) == (1, 2)
