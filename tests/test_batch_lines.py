"""A batch file's lines: three forms in, the same three out, and a reason for every other line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from _inf.batch_lines import parse
from _inf.output import GenerationRow
from _inf.record import Fault, Job
from _inf.tool_calls import ToolCall

DOCS = (Path(__file__).parent.parent / "docs" / "batch.md").read_text()
ABOUT = {
    "finish_reason": "stop",
    "prompt_tokens": 34,
    "completion_tokens": 3,
    "cached_tokens": 0,
}
HELLO = [{"role": "user", "content": "Hello"}]


def answered(line: Any, **fields: Any) -> dict[str, Any]:
    job = parse(json.dumps(line).encode(), 3, "SmolLM2-135M-Instruct")
    assert isinstance(job, Job), job
    row = GenerationRow(
        **{"completion": "Blue.", "token_ids": [], "logprobs": []} | fields, metadata=ABOUT
    )
    return job.row(row)


def body(**keys: Any) -> bytes:
    return json.dumps({"custom_id": "a", "body": {"messages": HELLO, **keys}}).encode()


def test_lines_of_the_documentation_become_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1795000000.5)
    given, wanted = (
        [json.loads(line) for line in block.splitlines()]
        for block in re.findall(r"```jsonl\n(.*?)```", DOCS, re.S)
    )
    assert len(given) == 3
    assert [answered(line) for line in given] == wanted


def test_openai_answer_is_what_openais_client_reads() -> None:
    types = pytest.importorskip("openai.types.chat")
    content = answered({"custom_id": "a", "body": {"messages": HELLO}})["response"]["body"]
    types.ChatCompletion.model_validate(content, strict=True)


def test_parameters_of_a_body_reach_generate_under_their_names_here() -> None:
    schema = {"type": "object"}
    job = parse(
        body(
            temperature=0.5,
            max_completion_tokens=7,
            stop=["x"],
            top_k=3,
            seed=None,
            n=1,
            model="m",
            response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
        ),
        1,
        "m",
    )
    assert isinstance(job, Job)
    wanted = {"temperature": 0.5, "max_tokens": 7, "stop": ["x"], "top_k": 3, "json_schema": schema}
    assert dict(job.params) == wanted


def test_tool_calls_left_to_the_caller_stand_in_the_message() -> None:
    call = ToolCall("f", {"x": 1}, "", 0, 0)
    said = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}, "id": "call_0"}
    assert answered({"prompt": "Hi"}, tool_calls=[call])["tool_calls"] == [said]
    row = answered({"custom_id": "a", "body": {"messages": HELLO}}, tool_calls=[call])
    assert row["response"]["body"]["choices"][0]["message"]["tool_calls"] == [said]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", ["JSON"]),
        (b"\xff\xfe", ["JSON"]),
        (b'{"prompt": NaN}', ["NaN"]),
        (b'{"prompt": "a", "x": 1e400}', ["1e400 is too large"]),
        (b"[" * 100_000, ["JSON"]),
        (b"[1]", ["object"]),
        (b"{}", ["none of prompt, messages and body", "forms"]),
        (b'{"prompt": "a", "messages": []}', ["prompt and messages"]),
        (b'{"prompt": ["a"]}', ["prompt", "text"]),
        (b'{"prompt": "a", "completion": "b"}', ["completion", "rename"]),
        (b'{"messages": "a"}', ["messages", "list"]),
        (b'{"messages": [], "metadata": 1}', ["metadata"]),
        (b'{"body": {"messages": []}}', ["custom_id"]),
        (b'{"custom_id": "a", "body": 1}', ["body", "object"]),
        (b'{"custom_id": "a", "body": {}}', ["messages"]),
        (b'{"custom_id": "a", "body": {"messages": []}, "metod": 1}', ["metod", "'method'"]),
        (b'{"custom_id": "a", "url": "/v1/embeddings", "body": {}}', ["/v1/chat/completions"]),
        (body(temprature=0), ["body.temprature", "'temperature'"]),
        (body(tools=[]), ["body.tools", "unknown"]),
        (body(n=2), ["body.n", "2"]),
        (body(stream=True), ["body.stream"]),
        (body(temperature=[0.5]), ["body.temperature", "list"]),
        (body(max_tokens=1, max_completion_tokens=2), ["max_completion_tokens", "max_tokens"]),
        (body(response_format={"type": "json_object"}), ["response_format", "json_schema"]),
    ],
)
def test_line_that_cannot_be_used_says_why(line: bytes, words: list[str]) -> None:
    fault = parse(line, 5, "m")
    assert isinstance(fault, Fault) and fault.line == 5
    assert all(word in fault.reason for word in words), fault.reason
