"""The rules of a conversation that no limit ends."""

from __future__ import annotations

from typing import Any

from _inf.conversation.episode import Rules


def rules(**changes: Any) -> Rules:
    values: dict[str, Any] = {
        "tools": {},
        "format": "hermes",
        "max_assistant_turns": 9,
        "max_user_turns": 9,
        "max_parallel_calls": 1,
        "max_result": 99,
        "truncate_side": "middle",
        "tool_timeout": 5.0,
        "response_length": 99,
        "max_model_len": 999,
        "vocabulary": 100,
        "over_sample_rate": 0.0,
        "eos_token_ids": frozenset([7]),
    }
    return Rules(**values | changes)
