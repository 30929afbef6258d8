"""Why a conversation begins a new trace."""

from __future__ import annotations

from typing import Any

from _inf.apps.rollouts.traces import Trace
from _inf.apps.serve.forks import Fork, fork_of
from tests.support.serve_clients import user

SYSTEM = {"role": "system", "content": "Work."}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def said(text: str, **also: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **also}


RECORDED = [
    *(SYSTEM, user("One"), said("1", reasoning_content="Easy."), user("Two"), said("2")),
    *(user("Three"), said("3", tool_calls=[CALL])),
]
FORKS = [
    (RECORDED[:4], 4, "retried"),
    ([*RECORDED, user("Four")], 7, "template"),
    ([SYSTEM, user("One"), said("1"), *RECORDED[3:], user("Four")], 2, "thinking"),
    ([SYSTEM, user("One"), said("7"), *RECORDED[3:], user("Four")], 2, "edited_answer"),
    ([*RECORDED[:6], said("3"), user("Four")], 6, "edited_answer"),
    ([*RECORDED[:3], user("2?"), *RECORDED[4:], user("Four")], 3, "edited_message"),
    ([*RECORDED[:5], user("3?")], 5, "edited_message"),
    ([*RECORDED[:3], *RECORDED[5:], user("Four"), user("Five"), user("Six")], 3, "shortened"),
    ([SYSTEM, *RECORDED[3:], user("Four")], 1, "shortened"),
    ([*RECORDED[:3], user("So far: 1, 2, 3. Go on.")], 3, "shortened"),
    ([SYSTEM, user("You are a sub-agent.")], 1, "other_conversation"),
]


def test_fork_says_from_where_and_why():
    far = Trace("far", [1], messages=[user("Another")])
    near = Trace("near", [1], messages=RECORDED)
    for messages, common, reason in FORKS:
        found = fork_of(messages, "tools", [("tools", far), ("tools", near)])
        assert found == Fork("near", common, reason)


def test_thought_in_the_text_of_an_answer_may_be_left_out():
    trace = Trace("t", [1], messages=[user("One"), said("<think>\nEasy.\n</think>\n\n1")])
    assert fork_of([user("One"), said("1"), user("Two")], "", [("", trace)]) == Fork(
        "t", 1, "thinking"
    )


def test_other_tools_are_the_reason_where_no_trace_with_the_same_is_as_near():
    traces = [("a", Trace("of-a", [1], messages=RECORDED)), ("b", Trace("of-b", [1]))]
    assert fork_of([*RECORDED, user("Four")], "b", traces) == Fork("of-a", 7, "tools")
    same = [*traces, ("b", Trace("also-b", [1], messages=RECORDED))]
    assert fork_of(RECORDED[:4], "b", same) == Fork("also-b", 4, "retried")


def test_conversation_with_nothing_in_common_is_no_fork():
    assert fork_of([user("Two")], "", [("", Trace("t", [1], messages=RECORDED))]) is None
    assert fork_of([user("Two")], "", []) is None
