"""`inf batch` on a real engine: answers as `generate`'s.

Order, resume at each byte and flat memory are shown with a stub, in `apps/test_batch_run.py`, and
what kills and signals leave in `soak/test_batch_faults.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inf import InferenceEngine
from tests.support.json_lines import read, write

Ran = tuple[int, str, str]


def test_three_forms_are_answered_as_generate_answers_and_bad_lines_are_named(
    on_tiny: Callable[..., Ran], tiny: InferenceEngine, tmp_path: Path
) -> None:
    talk = [{"role": "user", "content": "What is the capital?"}]
    lines = [
        {"prompt": "Hello", "id": 1},
        {"messages": talk},
        {"custom_id": "a", "body": {"messages": talk, "max_tokens": 3, "temperature": 0}},
        "not JSON",
        {"prompt": "word " * 600},
        {"custom_id": "b", "body": {"messages": talk, "temperature": -1}},
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    code, printed, err = on_tiny("batch", source, out, "--temperature", 0, "--max-tokens", 9)
    assert (code, printed) == (1, "")
    first, second, third, *errors = read(out)
    nine = tiny.generate(["Hello", talk], temperature=0, max_tokens=9)
    three = tiny.generate(talk, temperature=0, max_tokens=3)
    assert (first["id"], first["completion"]) == (1, nine.completions[0])
    assert second["messages"] == [*talk, {"role": "assistant", "content": nine.completions[1]}]
    choice = third["response"]["body"]["choices"][0]
    assert choice["message"]["content"] == three.completions[0]
    assert choice["finish_reason"] == three.metadata[0]["finish_reason"]
    assert third["response"]["body"]["usage"]["completion_tokens"] == len(three.token_ids[0])
    assert [row["line"] for row in errors] == [4, 5, 6]
    for row, word in zip(errors, ("JSON", "512", "temperature"), strict=True):
        reason = row["error"]["message"]
        assert word in reason and f"line {row['line']}: {reason}" in err
    assert errors[2]["custom_id"] == "b"
    assert '3 lines have an "error" in' in err


def test_tool_choice_makes_any_model_call_in_every_form_of_line(
    on_tiny: Callable[..., Ran], tmp_path: Path
) -> None:
    talk = [{"role": "user", "content": "What is the capital?"}]
    parameters = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters}} for name in "fg"
    ]
    one, missing = ({"type": "function", "function": {"name": name}} for name in "gh")
    any_: dict[str, Any] = {"tools": tools, "tool_choice": "required"}
    lines = [
        {"prompt": "Hello", "tools": tools, "tool_choice": one},
        {"messages": talk, **any_},
        {"custom_id": "a", "body": {"messages": talk, **any_}},
        {"custom_id": "b", "body": {"messages": talk, **any_, "max_tokens": 3}},
        {"prompt": "Hello", "tool_choice": "required"},
        {"prompt": "Hello", "tools": tools, "tool_choice": missing},
        {"prompt": "Hello", **any_, "regex": "a"},
        *({"prompt": "Hello", "tools": tools, "tool_choice": each} for each in ("auto", "none")),
        {"prompt": "Hello"},
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert on_tiny("batch", source, out, "--max-tokens", 60)[0] == 1
    first, second, third, fourth, *errors, shown, shown_alone, plain = read(out)
    sent = [row["usage"]["prompt_tokens"] for row in (shown, shown_alone, plain)]
    assert sent[0] == sent[1] > sent[2]  # tools are shown with `none` too
    [whole], [cut] = (row["response"]["body"]["choices"] for row in (third, fourth))
    for message in (first, second["messages"][-1], whole["message"]):
        [call] = message["tool_calls"]
        assert json.loads(call["function"]["arguments"])["x"] in (1, 2)
    assert first["tool_calls"][0]["function"]["name"] == "g" and first["completion"] == ""
    assert first["finish_reason"] == whole["finish_reason"] == "tool_calls"
    assert cut["finish_reason"] == "length" and "tool_calls" not in cut["message"]
    said = [row["error"]["message"] for row in errors]
    assert [text.split(":")[0] for text in said] == ["tool_choice"] * 3
    assert "needs tools" in said[0] and "no tool 'h'" in said[1] and "one grammar" in said[2]


def test_one_seed_answers_as_one_call_would_and_parameters_stand_in_any_form(
    on_tiny: Callable[..., Ran], tiny: InferenceEngine, tmp_path: Path
) -> None:
    lines = [{"prompt": "Hello", "max_tokens": 6}] * 4
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert on_tiny("batch", source, out, "--seed", 5, "--temperature", 1)[0] == 0
    answers = [row["completion"] for row in read(out)]
    wanted = tiny.generate(["Hello"] * 4, seed=5, temperature=1, max_tokens=6)
    assert answers == wanted.completions and len(set(answers)) == 4
    third = tiny.generate("Hello", seed=wanted.metadata[2]["seed"], temperature=1, max_tokens=6)
    assert third.completions[0] == answers[2]
