"""`inf batch` on a real engine: answers as `generate`'s.

Order, resume at each byte and flat memory are shown with a stub, in `apps/test_batch_run.py`, and
what kills and signals leave in `soak/test_batch_faults.py`.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.json_lines import read, write


def test_three_forms_are_answered_as_one_call_would(on_tiny, tiny, tmp_path):
    """Wrong lines are in `apps/test_batch_lines.py`; one here is told."""
    talk = [{"role": "user", "content": "What is the capital?"}]
    body = {"messages": talk, "max_tokens": 6}
    lines: list[Any] = [{"prompt": "Hello"}, {"messages": talk}, {"custom_id": "a", "body": body}]
    lines += [{"prompt": "Hello"}, {"prompt": "word " * 600}]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    sampled = ("--seed", 5, "--temperature", 1, "--max-tokens", 9)
    code, printed, err = on_tiny("batch", source, out, *sampled)
    assert (code, printed) == (1, "")
    first, second, third, fourth, wrong = read(out)
    wanted = tiny.generate(
        ["Hello", talk, talk, "Hello"], seed=5, temperature=1, max_tokens=[9, 9, 6, 9]
    )
    texts, answer = wanted.completions, third["response"]["body"]
    assert [first["completion"], fourth["completion"]] == [texts[0], texts[3]]
    assert second["messages"] == [*talk, {"role": "assistant", "content": texts[1]}]
    assert answer["choices"][0]["message"]["content"] == texts[2] and len({*texts}) == 4
    assert answer["usage"]["completion_tokens"] == wanted[2].completion_tokens
    reason = wrong["error"]["message"]
    assert "512" in reason and f"line 5: {reason}" in err


def test_tool_choice_makes_any_model_call(on_tiny, tmp_path):
    parameters = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    asked = {"tools": tools, "tool_choice": "required"}
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3, **asked}
    lines = [
        {"prompt": "Hello", **asked},
        {"custom_id": "a", "body": body},
        {"prompt": "Hello", **asked, "regex": "a"},
        {"prompt": "Hello", "tools": tools, "tool_choice": "none"},
        {"prompt": "Hello"},
    ]
    source, out = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert on_tiny("batch", source, out, "--max-tokens", 60)[0] == 1
    called, cut, wrong, shown, plain = read(out)
    assert json.loads(called["tool_calls"][0]["function"]["arguments"])["x"] in (1, 2)
    assert called["finish_reason"] == "tool_calls"
    [choice] = cut["response"]["body"]["choices"]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
    assert "one grammar" in wrong["error"]["message"]
    assert shown["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]  # with `none` too
