"""A body that a client sends is JSON values, or the error names the field that is not; and JSON
that is written is what every reader takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from _inf.apps.json_lines import json_text
from _inf.apps.json_object import json_object
from _inf.apps.openai_answers import assistant
from _inf.apps.tool_choice import forced_calls
from _inf.request.prompts import normalize
from _inf.types import ToolCall
from inf import ConfigError

UNUSABLE = ("NaN", '{"a": [-Infinity]}', "1" * 4301, "[" * 201 + "]" * 201, r'"a\ud800"')


def test_text_that_is_not_json_is_said_to_be_so():
    texts = [f'{{"a": {value}}}'.encode() for value in UNUSABLE]
    for text in (*texts, b"", b"{", b'{"a": 1,}', b'{"a": "\xff"}', b"[" * 100_000):
        with pytest.raises(ConfigError, match="it is not JSON: .* at line 1"):
            json_object(text)
    with pytest.raises(ConfigError, match="not a JSON object: \\[1]"):
        json_object(b"[1]")
    inside = "[" * 199 + "]" * 199
    body = f'{{"a": {"1" * 4300}, "b": {inside}, "c": [1e308, 1e-400, 1.5e0308]}}'
    assert json_object(body.encode()) == json.loads(body)


def deep(levels: int) -> Any:
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def test_arguments_that_json_cannot_hold_are_their_text():
    text = '{"name": "f", "arguments": {"x": ...}}'
    for value in (float("nan"), float("inf"), deep(5000)):
        call = ToolCall("f", {"x": value}, text, 0, len(text))
        [said] = assistant("", [call], ["call_1"])["tool_calls"]
        assert said["function"]["arguments"] == text


def test_forced_call_that_nests_too_deeply_is_text():
    levels = 100_000
    arguments = '{"a": ' * levels + "1" + "}" * levels
    assert forced_calls(f'{{"name": "f", "arguments": {arguments}}}') == []


def test_history_whose_arguments_cannot_be_used_equals_itself():
    """A session finds where a conversation goes on by comparing messages."""
    for value in UNUSABLE:
        function = {"name": "f", "arguments": f'{{"x": {value}}}'}
        call = {"type": "function", "function": function}
        asked = [[{"role": "assistant", "content": None, "tool_calls": [call]}]]
        [messages] = normalize(asked)
        assert messages == normalize(asked)[0]
        json.dumps(messages, allow_nan=False, ensure_ascii=False).encode()


def test_numbers_that_json_does_not_have_are_written_as_null_and_others_as_they_are():
    value = {"a": float("nan"), "b": [float("inf"), -float("inf"), "NaN", 1e300], "c": {1}}
    text = json_text(value, default=list, indent=1)
    assert json.loads(text) == {"a": None, "b": [None, None, "NaN", 1e300], "c": [1]}
    assert "Infinity" not in text
    assert json_text([0.5, None, "é"]) == json.dumps([0.5, None, "é"])
