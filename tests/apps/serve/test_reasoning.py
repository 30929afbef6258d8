"""Thoughts of answers: apart in rows, streams and chats, and part of the ids of a session."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.scripted_server import Reply, scripted
from tests.support.scripted_server import connected as connected_to_text
from tests.support.scripted_thoughts import Speaker
from tests.support.serve_clients import client

SAID = "<think>\nThe capital?\n</think>\n\nIt is Paris."
ASK: list[Any] = [{"role": "user", "content": "What is the capital?"}]
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
OPENED = {"chat_template_kwargs": {"thinking": True}}


@pytest.fixture
def engine(spoken: tuple[Speaker, InferenceEngine]) -> InferenceEngine:
    return spoken[1]


def create(openai: OpenAI, messages: Any = ASK, **fields: Any) -> Any:
    return openai.chat.completions.create(model="some-model", messages=messages, **fields)


def streamed(openai: OpenAI, **fields: Any) -> dict[str, str]:
    """The joined texts of a stream by their names."""
    texts = {"reasoning": "", "reasoning_content": "", "content": ""}
    for chunk in create(openai, stream=True, **fields):
        for choice in chunk.choices:
            for name in texts:
                texts[name] += getattr(choice.delta, name, None) or ""
    return texts


# ─── Rows ───


def test_row_has_its_thought_beside_its_completion(
    speaker: Speaker, engine: InferenceEngine
) -> None:
    speaker.says(SAID)
    output = engine.generate("Hi")
    [row] = output
    assert (row.reasoning, row.completion) == ("The capital?", "It is Paris.")
    assert output.reasoning == ["The capital?"]
    assert row.token_ids == speaker.answer
    thought = engine.tokenizer.decode(speaker.answer[: row.metadata["reasoning_tokens"]])
    assert thought.endswith("</think>")
    chunks = [*engine.stream("Hi")]
    assert "".join(chunk.reasoning for chunk in chunks) == row.reasoning
    assert "".join(chunk.text for chunk in chunks) == row.completion
    assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
    assert chunks[-1].metadata is not None
    assert chunks[-1].metadata["reasoning_tokens"] == row.metadata["reasoning_tokens"]


def test_stop_string_in_a_thought_ends_it(speaker: Speaker, engine: InferenceEngine) -> None:
    speaker.says(SAID)
    speaker.answer = engine.tokenizer("<think>\nThe capital")["input_ids"]
    speaker._next, speaker.stop_reason = [], "capital"
    try:
        [row] = engine.generate("Hi", stop="capital")
        assert (row.reasoning, row.completion) == ("The", "")
        assert row.metadata["reasoning_tokens"] == len(speaker.answer)
    finally:
        speaker.stop_reason = None


def test_tool_loop_keeps_thoughts_in_its_messages(
    speaker: Speaker, engine: InferenceEngine
) -> None:
    def look(at: int) -> str:
        """Look.

        Args:
            at: where
        """
        return f"saw {at}"

    speaker.says(f"Look there?</think>{CALL}", "Fine.</think>Done.")
    [row] = engine.generate("Hi", tools=[look], chat_template_kwargs={"thinking": True})
    assert row.messages is not None
    assert [m.get("reasoning_content") for m in row.messages] == [
        None,
        "Look there?",
        None,
        "Fine.",
    ]
    assert (row.reasoning, row.completion) == ("Fine.", "Done.")
    assert [call["result"] for call in row.metadata["tool_calls"]] == ["saw 1"]


# ─── Chats ───


def test_chat_has_the_thought_under_both_names(speaker: Speaker, server: InferenceServer) -> None:
    speaker.says(SAID)
    answer = create(client(server))
    message = answer.choices[0].message
    assert (message.reasoning, message.content) == ("The capital?", "It is Paris.")
    assert message.reasoning_content == message.reasoning
    assert answer.usage.completion_tokens_details.reasoning_tokens > 5
    thought = dict.fromkeys(("reasoning", "reasoning_content"), message.reasoning)
    assert streamed(client(server)) == {**thought, "content": message.content}


@pytest.mark.parametrize(
    ("said", "thought", "content"),
    [
        ("The capital?\n</think>\n\nIt is Paris.", "The capital?", "It is Paris."),
        (SAID, "The capital?", "It is Paris."),  # opened twice
        ("The capital? It </th", "The capital? It </th", ""),  # unfinished
    ],
)
def test_template_may_open_the_thought(
    speaker: Speaker, server: InferenceServer, said: str, thought: str, content: str
) -> None:
    speaker.says(said)
    openai = client(server)
    message = create(openai, extra_body=OPENED).choices[0].message
    assert (message.reasoning, message.content) == (thought, content)
    texts = streamed(openai, extra_body=OPENED)
    assert (texts["reasoning"], texts["content"]) == (thought, content)


@pytest.mark.parametrize(
    ("said", "thought", "content", "calls"),
    [
        (f"<think>Maybe {CALL}?</think>No.", f"Maybe {CALL}?", "No.", 0),
        (f"<think>I look.</think>\n\nSo:\n{CALL}", "I look.", "So:", 1),
        (f"<think>I look.\n{CALL}", "I look.", "", 1),  # the call ends the thought
    ],
)
def test_call_in_a_thought_counts_only_if_the_answer_ends_in_it(
    speaker: Speaker, server: InferenceServer, said: str, thought: str, content: str, calls: int
) -> None:
    speaker.says(said)
    openai = client(server)
    message = create(openai, tools=[TOOL]).choices[0].message
    assert (message.reasoning, message.content or "") == (thought, content)
    assert len(message.tool_calls or []) == calls
    texts = streamed(openai, tools=[TOOL])
    assert (texts["reasoning"], texts["content"].strip()) == (thought, content)


def test_completions_and_forced_calls_are_not_split(
    speaker: Speaker, server: InferenceServer
) -> None:
    speaker.says(SAID)
    openai = client(server)
    whole = openai.completions.create(model="some-model", prompt="Hi").choices[0].text
    parts = openai.completions.create(model="some-model", prompt="Hi", stream=True)
    assert whole == SAID == "".join(part.choices[0].text for part in parts)
    speaker.says('{"name": "look", "arguments": {}}')
    answer = create(openai, tools=[TOOL], tool_choice="required", extra_body=OPENED)
    message = answer.choices[0].message
    assert message.tool_calls[0].function.name == "look"
    assert message.reasoning is None


def test_history_with_a_thought_is_rendered(speaker: Speaker, server: InferenceServer) -> None:
    speaker.says("Yes.")
    for name in ("reasoning", "reasoning_content"):
        said = {"role": "assistant", "content": "Paris.", name: "The capital?"}
        create(client(server), [*ASK, said, *ASK])
        assert "<think>\nThe capital?\n</think>\n\nParis.<|im_end|>" in speaker.prompts[-1]


def test_session_keeps_the_thoughts_ids(speaker: Speaker, server: InferenceServer) -> None:
    """Of a client that sends thoughts back; where it drops them, a trace forks."""
    speaker.says(SAID, "<think>Again?</think>Yes.")
    openai = client(server, base_url=server.session_url("thoughts"))
    message = create(openai).choices[0].message.model_dump(exclude_none=True)
    first = list(speaker.answer)
    create(openai, [*ASK, message, *ASK])
    [trace] = server.traces("thoughts")
    assert trace.token_ids[: len(first)] == first
    assert trace.response_mask[: len(first)] == [1] * len(first)
    for name in ("reasoning", "reasoning_content"):
        del message[name]
    create(openai, [*ASK, message, *ASK])
    forked = server.traces("thoughts")[1]
    assert forked.forked_from == (trace.id, 1)
    httpx.delete(server.session_url("thoughts").removesuffix("/v1")).raise_for_status()


# ─── A server of text ───


def test_thought_that_a_server_of_text_splits_off_is_taken() -> None:
    about = {"completion_tokens_details": {"reasoning_tokens": 4}}
    usage = {"prompt_tokens": 1, "completion_tokens": 6, **about}
    message = {"content": "Paris.", "reasoning_content": "The capital?"}

    def script(path: str, body: Any) -> Reply:
        if path.endswith("/models"):
            return Reply({"data": [{"id": "some-model"}]})
        if not body.get("stream"):
            choice = {"message": message, "finish_reason": "stop"}
            return Reply({"choices": [choice], "usage": usage})
        deltas: list[Any] = [{name: letter} for name in message for letter in message[name]]
        deltas.sort(key=lambda delta: "content" in delta)
        events: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage}
        return Reply(events=[*events, last])

    with scripted(script) as server, connected_to_text(server) as engine:
        [row] = engine.generate("Hi")
        chunks = [*engine.stream("Hi")]
    assert (row.reasoning, row.completion) == ("The capital?", "Paris.")
    assert row.metadata["reasoning_tokens"] == 4
    assert "".join(chunk.reasoning for chunk in chunks) == row.reasoning
    assert "".join(chunk.text for chunk in chunks) == row.completion
