"""Thoughts of answers: apart in rows, streams and chats, and part of the ids of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from openai import OpenAI

from inf import StreamChunk
from tests.support.scripted_server import Reply, scripted
from tests.support.scripted_server import connected as connected_to_text
from tests.support.scripted_thoughts import CALL, SAID
from tests.support.serve_clients import client, user
from tests.support.tool_calling import calculator, call

ASK = [user("What is the capital?")]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
OPENED = {"extra_body": {"chat_template_kwargs": {"thinking": True}}}
WITH_TOOL = {"tools": [TOOL]}


@pytest.fixture
def engine(spoken):
    return spoken[1]


def joined(chunks: Iterable[StreamChunk]) -> tuple[str, str]:
    """The thought and the text of a stream."""
    parts = [(chunk.reasoning, chunk.text) for chunk in chunks]
    thoughts, texts = zip(*parts, strict=True)
    return "".join(thoughts), "".join(texts)


@pytest.fixture
def api(server):
    return client(server)


def create(openai: OpenAI, messages: Any = ASK, **fields: Any) -> Any:
    return openai.chat.completions.create(model="some-model", messages=messages, **fields)


def both(openai: OpenAI, **fields: Any) -> tuple[Any, Any, Any]:
    """The message, its thought and its content, which those of a stream join to."""
    message = create(openai, **fields).choices[0].message
    texts = {"reasoning": "", "reasoning_content": "", "content": ""}
    for chunk in create(openai, stream=True, **fields):
        for choice in chunk.choices:
            for name in texts:
                texts[name] += getattr(choice.delta, name, None) or ""
    assert texts.pop("content").strip() == (message.content or "").strip()
    assert message.reasoning_content == message.reasoning
    assert [*texts.values()] == [message.reasoning or ""] * 2
    return message, message.reasoning, message.content or ""


# ─── Rows ───


def test_row_has_its_thought_beside_its_completion(speaker, engine):
    speaker.says(SAID)
    output = engine.generate("Hi")
    [row] = output
    assert (row.reasoning, row.completion) == ("The capital?", "It is Paris.")
    assert output.reasoning == ["The capital?"] and row.token_ids == speaker.answer
    thought = engine.tokenizer.decode(speaker.answer[: row.metadata["reasoning_tokens"]])
    assert thought.endswith("</think>")
    chunks = [*engine.stream("Hi")]
    assert joined(chunks) == (row.reasoning, row.completion)
    assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
    last = chunks[-1].metadata
    assert last and last["reasoning_tokens"] == row.metadata["reasoning_tokens"]


def test_stop_string_in_a_thought_ends_it(speaker, engine, monkeypatch):
    speaker.says(SAID)
    speaker.answer = engine.tokenizer("<think>\nThe capital")["input_ids"]
    speaker._next = []
    monkeypatch.setattr(speaker, "stop_reason", "capital")
    [row] = engine.generate("Hi", stop="capital")
    assert (row.reasoning, row.completion) == ("The", "")
    assert row.metadata["reasoning_tokens"] == len(speaker.answer)


def test_tool_loop_keeps_thoughts_in_its_messages(speaker, engine):
    speaker.says(f"Look there?</think>{call('1')}", "Fine.</think>Done.")
    how = {"tools": [calculator("1")], "chat_template_kwargs": {"thinking": True}}
    [row] = engine.generate("Hi", **how)
    thoughts = [message.get("reasoning_content") for message in row.messages or []]
    assert thoughts == [None, "Look there?", None, "Fine."]
    assert (row.reasoning, row.completion) == ("Fine.", "Done.")


# ─── Chats ───


@pytest.mark.parametrize(
    ("said", "asked", "thought", "content", "calls"),
    [
        (SAID, {}, "The capital?", "It is Paris.", 0),
        (SAID, OPENED, "The capital?", "It is Paris.", 0),  # opened twice
        ("The capital? It </th", OPENED, "The capital? It </th", "", 0),  # unfinished
        (f"<think>Maybe {CALL}?</think>No.", WITH_TOOL, f"Maybe {CALL}?", "No.", 0),
        (f"<think>I look.</think>\n\nSo:\n{CALL}", WITH_TOOL, "I look.", "So:", 1),
        (f"<think>I look.\n{CALL}", WITH_TOOL, "I look.", "", 1),  # the call ends the thought
    ],
)
def test_chat_has_the_thought_under_both_names(speaker, api, said, asked, thought, content, calls):
    """A call in a thought counts only if the answer ends in it."""
    speaker.says(said)
    message, *found = both(api, **asked)
    assert found == [thought, content] and len(message.tool_calls or []) == calls


def test_completions_and_forced_calls_are_not_split(speaker, api):
    speaker.says(SAID)
    assert create(api).usage.completion_tokens_details.reasoning_tokens > 5
    whole = api.completions.create(model="some-model", prompt="Hi").choices[0].text
    parts = api.completions.create(model="some-model", prompt="Hi", stream=True)
    assert whole == SAID == "".join(part.choices[0].text for part in parts)
    speaker.says('{"name": "look", "arguments": {}}')
    message, thought, _ = both(api, tools=[TOOL], tool_choice="required", **OPENED)
    assert message.tool_calls[0].function.name == "look" and thought is None


def test_session_keeps_the_thoughts_ids(speaker, server):
    """Of a client that sends thoughts back, by either name; where it drops them, a trace forks."""
    speaker.says(SAID, "<think>Again?</think>Yes.")
    openai = client(server, "thoughts")
    message = create(openai).choices[0].message.model_dump(exclude_none=True)
    first = list(speaker.answer)
    create(openai, [*ASK, message, *ASK])
    [trace] = server.traces("thoughts")
    assert trace.token_ids[: len(first)] == first
    assert trace.response_mask[: len(first)] == [1] * len(first)
    thoughts = {name: message.pop(name) for name in ("reasoning", "reasoning_content")}
    create(openai, [*ASK, message, *ASK])
    assert server.traces("thoughts")[1].forked_from == (trace.id, 1)
    for name, thought in thoughts.items():
        create(client(server), [*ASK, {**message, name: thought}, *ASK])
        assert "<think>\nThe capital?\n</think>\n\nIt is Paris.<|im_end|>" in speaker.prompts[-1]


# ─── A server of text ───


def test_thought_that_a_server_of_text_splits_off_is_taken():
    about = {"completion_tokens_details": {"reasoning_tokens": 4}}
    usage = {"prompt_tokens": 1, "completion_tokens": 6, **about}
    said = ("The capital?", "Paris.")
    message = dict(zip(("reasoning_content", "content"), said, strict=True))

    def script(path: str, body: Any) -> Reply:
        if path.endswith("/models"):
            return Reply({"data": [{"id": "some-model"}]})
        if not body.get("stream"):
            choice = {"message": message, "finish_reason": "stop"}
            return Reply({"choices": [choice], "usage": usage})
        deltas = [{name: letter} for name in message for letter in message[name]]
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
        return Reply(events=[*({"choices": [{"delta": delta}]} for delta in deltas), last])

    with scripted(script) as server, connected_to_text(server) as engine:
        [row] = engine.generate("Hi")
        assert (row.reasoning, row.completion) == joined(engine.stream("Hi")) == said
    assert row.metadata["reasoning_tokens"] == 4
