"""The three forms of a batch file's line, their answers, and the reason for every bad line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai.types import chat as types

from _inf.apps.batch.lines import BadLine, Job, parse
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.turns import Transcript
from _inf.types import ToolCall

DOCS = (Path(__file__).parents[2] / "docs" / "batch.md").read_text()
ABOUT = {"finish_reason": "stop", "prompt_tokens": 34, "completion_tokens": 3}
HELLO = [{"role": "user", "content": "Hello"}]


class Letters:
    """A tokenizer whose ids are bytes."""

    def decode(self, ids: list[int], **how: Any) -> str:
        return bytes(ids).decode(errors="replace")

    def convert_ids_to_tokens(self, token: int) -> str:
        return f"<0x{token:02X}>"

    def __len__(self) -> int:
        return 256


def answered(line: Any, texts: Sequence[str] = ("Blue.",), **fields: Any) -> dict[str, Any]:
    job = parse(json.dumps(line).encode(), 3, "SmolLM2-135M-Instruct", Letters())
    assert isinstance(job, Job), job
    if "messages" in fields:
        fields["transcript"] = Transcript(fields.pop("messages"))
    rows = [
        GenerationRow(text, [*text.encode()], [-0.5] * len(text.encode()), **ABOUT, **fields)
        for text in texts
    ]
    return job.row(GenerationOutput(rows))


def params(line: bytes) -> dict[str, Any]:
    job = parse(line, 1)
    assert isinstance(job, Job), job
    return dict(job.params)


def body(**keys: Any) -> bytes:
    return json.dumps({"custom_id": "a", "body": {"messages": HELLO, **keys}}).encode()


def test_lines_of_the_documentation_become_its_answers(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1795000000.5)
    given, wanted = (
        [json.loads(line) for line in block.splitlines()]
        for block in re.findall(r"```jsonl\n(.*?)```", DOCS, re.S)[:2]
    )
    assert [row.pop("line") for row in wanted] == [1, 2, 3]
    assert [answered(line) for line in given] == wanted


def openai_answer(*texts: str, asked: Any = None, **fields: Any) -> Any:
    """The body of the response to OpenAI's form of line, which OpenAI's client can read."""
    line = {"custom_id": "a", "body": {"messages": HELLO, **(asked or {})}}
    found = answered(line, texts or ("Blue.",), **fields)["response"]["body"]
    types.ChatCompletion.model_validate(found, strict=True)
    return found


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": SCHEMA}}


def test_parameters_reach_generate_in_every_form_of_line_under_their_names_here():
    keys = {"temperature": 0.5, "stop": ["x"], "logit_bias": {"50": -100}, "n": 1}
    keys |= {"truncate_prompt": "left"}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
    theirs = {"max_completion_tokens": 7, "seed": None, "logprobs": True, "model": "m"}
    theirs |= {"tools": [TOOL], "tool_choice": "auto", "response_format": form}
    ours = {"max_tokens": 7, "tools": [TOOL], "json_schema": SCHEMA}
    assert params(body(**keys, **theirs)) == keys | ours
    for line in ({"prompt": "Hi", "id": 1}, {"messages": HELLO, "conversation_id": "c"}):
        assert params(json.dumps(line | keys | {"seed": 3}).encode()) == keys | {"seed": 3}
        row = answered(line | keys)
        assert keys == {name: row.get(name, 1) for name in keys}


def test_what_asks_for_nothing_passes():
    nothing = {"logit_bias": {}, "n": 1, "stream": False, "logprobs": False}
    nothing |= {"top_logprobs": 0, "parallel_tool_calls": True, "modalities": ["text"]}
    assert params(body(**nothing)) == {"logit_bias": {}, "n": 1}
    assert params(body(tools=[])) == params(body(tool_choice="none")) == {"tools": []}
    assert params(body(response_format={"type": "text"})) == {}
    # Zero and empty values are asked for.
    zeros = {"max_tokens": 0, "temperature": 0}
    assert params(body(max_completion_tokens=0, temperature=0)) == zeros
    assert params(body(response_format={"type": "json_object"}))["json_schema"] == {
        "type": "object"
    }
    others = dict.fromkeys(("messages", "body"))
    assert params(json.dumps({**others, "prompt": "a"}).encode()) == {}


def test_null_under_every_key_of_openais_passes():
    keys = types.completion_create_params.CompletionCreateParamsBase.__annotations__.keys()
    assert params(body(**dict.fromkeys(keys - {"messages"} | {"stream"}))) == {}


def test_several_answers_are_choices_with_their_tokens_and_the_prompt_counts_once():
    content = openai_answer("aß", "Two", asked={"n": 2, "logprobs": True})
    said = [(choice["index"], choice["message"]["content"]) for choice in content["choices"]]
    assert said == [(0, "aß"), (1, "Two")]
    counts = content["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (34, 6)
    assert counts["total_tokens"] == 40
    first, *_ = content["choices"][0]["logprobs"]["content"]
    assert first == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}


def test_tool_calls_left_to_the_caller_stand_in_the_message():
    call, broken = ToolCall("f", {"x": 1}, "", 0, 0), ToolCall("f", {}, '{"x"', 0, 0, "no JSON")
    said = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}, "id": "call_0"}
    assert answered({"prompt": "Hi"}, tool_calls=[call])["tool_calls"] == [said]
    for content in ("", "I call."):
        turns = [*HELLO, {"role": "assistant", "content": content}]
        asked = {"asked": {"tools": [TOOL]}, "messages": turns}
        found = openai_answer("<tool_call>", tool_calls=[call, broken], **asked)
        message = found["choices"][0]["message"]
        assert message["content"] == (content or None)
        assert message["tool_calls"][0] == said
        assert message["tool_calls"][1]["function"]["arguments"] == '{"x"'


def test_what_rides_along_comes_back_also_of_a_wrong_line():
    copied = {"id": 7, "metadata": {"a": 1}, "custom_id": "c"}
    assert copied.items() <= answered({"prompt": "Hi", **copied}).items()
    assert copied.items() <= answered({"body": {"messages": HELLO}, **copied}).items()
    assert (
        parse(body(x=1), 1).copied == parse(b'{"custom_id": "a"}', 1).copied == {"custom_id": "a"}
    )
    assert parse(b"{", 1).copied == {}


# What is wrong with the value of a keyword is in tests/request; here, what is wrong with a line.
def test_line_that_cannot_be_used_says_why():
    for line, said in (
        (b'{"prompt": "\\ud800"}', "it is not JSON"),
        (b"{}", "none of prompt, messages and body.*forms"),
        (b'{"prompt": "a", "messages": []}', "prompt and messages"),
        (b'{"prompt": [{"role": "user"}]}', "prompt: it is a list of messages.*'messages'"),
        (b'{"prompt": "a", "completion": "b"}', "completion: unknown"),
        (b'{"custom_id": "a", "url": "/v1/embeddings", "body": {}}', "/v1/chat/completions"),
        (body(temprature=0), "body.temprature.*'temperature'"),
        (b'{"prompt": "a", "n": 2}', "n: must be 1, not 2"),
        (body(logprobs=True, top_logprobs=21), "body.top_logprobs: 21.*at most 20"),
        (body(logprobs=True), "body.logprobs: the server works with text"),  # without a tokenizer
    ):
        bad = parse(line, 5, "m")
        assert isinstance(bad, BadLine) and bad.line == 5, bad
        assert re.search(said, bad.reason), bad.reason
