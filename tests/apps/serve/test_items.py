"""OpenAI's Responses are chats in another form, through the `openai` package: the same prompts,
answers and traces."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from _inf.apps.serve.item_bodies import ItemsBody, ItemsChat
from tests.support.scripted_thoughts import CALL, SAID, THOUGHT_CALL, sampled
from tests.support.serve_clients import client, user

PATCH = '<tool_call>\n{"name": "patch", "arguments": {"input": "+a\\n"}}\n</tool_call>'
SPAWN = '<tool_call>\n{"name": "agents__spawn", "arguments": {}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
LOOK = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}
TOOLS = [
    LOOK,
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "definition": "start: /./"}},
    {"type": "namespace", "name": "agents", "tools": [{**LOOK, "name": "spawn"}]},
]
ASK = "What is the capital?"
KEPT = {"include": ["reasoning.encrypted_content"], "store": False}


@pytest.fixture
def api(server):
    return client(server)


def create(api: OpenAI, **fields: Any) -> Any:
    return api.responses.create(**({"model": "some-model", "input": ASK} | fields))


def without_ids(response: Any) -> Any:
    """What is the same of two responses."""
    about = response.to_dict(warnings=False)  # of tools that it does not know
    for each in (about, *about["output"]):
        for name in ("id", "created_at", "call_id"):
            each.pop(name, None)
    return about


def checked(events: list[Any]) -> Any:
    """The response that a stream ends in; each item is what its events say."""
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    *rest, last = events[2:]
    texts = {}
    done = []
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
    ("said", "ends", "kinds", "status"),
    [
        (SAID, "stop", ["reasoning", "message"], "completed"),
        (THOUGHT_CALL, "stop", ["reasoning", "message", "function_call"], "completed"),
        (PATCH, "stop", ["custom_tool_call"], "completed"),
        (SPAWN, "stop", ["function_call"], "completed"),
        ("Paris. " * 200, "stop", ["message"], "incomplete"),
        ("Paris.", "repetition", ["message"], "incomplete"),
    ],
)
def test_stream_ends_in_the_whole_response(speaker, api, said, ends, kinds, status):
    speaker.says(said, ends=ends)
    fields = {"tools": TOOLS, "max_output_tokens": 200, **KEPT}
    whole = create(api, **fields)
    assert [item.type for item in whole.output] == kinds and whole.status == status
    assert whole.usage.output_tokens == min(len(speaker.answer), 200)
    assert without_ids(checked([*create(api, **fields, stream=True)])) == without_ids(whole)
    if status == "incomplete":
        assert whole.incomplete_details.reason == "max_output_tokens"
    if said == PATCH:
        assert (whole.output[0].name, whole.output[0].input) == ("patch", "+a\n")
    if said == SPAWN:
        assert (whole.output[0].name, whole.output[0].namespace) == ("spawn", "agents")
    assert "start: /./" in speaker.prompts[-1]  # the grammar, which only the model reads


def test_aborted_answer_is_an_error(speaker, api):
    speaker.says(SAID, ends="abort")
    with pytest.raises(openai.InternalServerError, match="paused") as refused:
        create(api, tools=TOOLS)
    assert refused.value.status_code == 503
    try:
        *_, failed, error = create(api, tools=TOOLS, stream=True)
    except openai.InternalServerError as at_once:  # the whole answer came as the first chunk
        assert at_once.status_code == 503
    else:
        assert (failed.type, failed.response.status) == ("response.failed", "failed")
        assert error.type == "error" and "paused" in error.message


# ─── Prompts ───


def test_items_are_rendered_as_the_chats_messages(speaker, api):
    def text(role: str, said: str, kind: str = "input_text") -> Any:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": said}]}

    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at": 1}'}
    items = [
        text("developer", "Two."),
        user("Look."),
        {"type": "reasoning", "summary": [], "encrypted_content": "unencrypted:Where?"},
        text("assistant", "Look.", "output_text"),
        call,
        {"type": "function_call_output", "call_id": "call_1", "output": "saw"},
        text("developer", "Be brief."),
        text("user", "Go on."),
    ]
    speaker.says("Yes.")
    create(api, input=items, instructions="One.")
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


def test_fields_are_those_of_chats():
    same = {"top_k": 5, "repetition_penalty": 1.1, "seed": 4, "frequency_penalty": 0.5, "stop": "x"}
    sent = {
        "input": ASK,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}},
        "tools": [LOOK],
        "tool_choice": {"type": "function", "name": "look"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "chat_template_kwargs": {"a": 1},
        "max_output_tokens": 7,
    }
    chat = ItemsChat.of(ItemsBody.model_validate(sent | same), "{{ reasoning_effort }}")
    keywords = chat.keywords()
    assert keywords["json_schema"] == SCHEMA and keywords["max_tokens"] == 7
    assert chat.tool_choice.function.name == "look"
    assert keywords["chat_template_kwargs"] == {"reasoning_effort": "low", "a": 1}
    assert same.items() <= keywords.items()


# ─── Sessions ───


@pytest.mark.parametrize("stream", [False, True])
def test_conversation_is_one_trace_of_the_sampled_ids(stream, speaker, server):
    """Of a client that sends back the items it got."""
    said = [f"<think>Look.</think>So:\n{CALL}", PATCH, f"<think>And</think>{SPAWN}", SAID]
    speaker.says(*said)
    name = f"items-{stream}"
    items = [user(ASK)]
    ids, api = list[int](), client(server, name)
    for _ in said:
        asked = {"model": "some-model", "input": items, "tools": TOOLS, **KEPT}
        if stream:
            with api.responses.stream(**asked) as events:
                answer = events.until_done().get_final_response()
        else:
            answer = api.responses.create(**asked)
        ids += speaker.answer
        for item in answer.output:
            items.append(item.to_dict(warnings=False))
            if item.type == "reasoning":
                del items[-1]["content"]  # as Codex does
            if item.type.endswith("call"):
                about = {"type": f"{item.type}_output", "call_id": item.call_id}
                items.append({**about, "output": "saw"})
    [trace] = server.traces(name)
    assert sampled(trace) == ids and len(trace.finish_reasons) == len(said)


# ─── Refusals ───

SPAWNS = {"type": "custom", "name": "agents__spawn"}


def test_what_would_change_the_answer_is_refused_by_name(api):
    for fields, named in (
        ({"previous_response_id": "resp_1"}, "unknown key; nothing is stored"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools.0.type: .*'code_interpreter'"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "'input_file'"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input.0.type: 'item_reference'"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "encrypted"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema: it is m"),
        ({"tools": [SPAWNS, *TOOLS[2:]]}, "the name 'agents__spawn' is taken"),
    ):
        with pytest.raises(openai.BadRequestError, match=named):
            create(api, **fields)


def test_tool_that_is_left_out_is_named_in_a_header(speaker, api):
    """Codex always sends it."""
    speaker.says("Yes.")
    tools = [LOOK, {"type": "web_search", "external_web_access": False}]
    for given, stream in ((tools, True), (tools[:1], False)):
        answer = api.responses.with_raw_response.create(
            model="some-model", input=ASK, tools=given, stream=stream
        )
        assert ("web_search" in answer.headers.get("warning", "")) == (given is tools)
