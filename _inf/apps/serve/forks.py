"""Says why a conversation begins a new trace, from what differs between it and the nearest one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from _inf.apps.rollouts.traces import Trace
from _inf.types import Message

THOUGHTS = ("reasoning_content", "reasoning")
END_OF_THOUGHT = "</think>"


class Fork(NamedTuple):
    """trace: the id of the trace that a new one shares its first messages with. messages: how many.
    reason: why it does not continue that trace; docs/serving.md lists the reasons."""

    trace: str
    messages: int
    reason: str


def fork_of(
    messages: Sequence[Message], context: str, traces: Sequence[tuple[str, Trace]]
) -> Fork | None:
    """Return the fork from the trace with the most first messages in common; None if there is none.

    context: the tools and the template's keywords; traces: each with its context, newest first.
    """

    def nearness(pair: tuple[str, Trace]) -> tuple[int, bool]:
        return _common(messages, pair[1].messages), pair[0] == context

    other, nearest = max(traces, key=nearness, default=("", None))
    if nearest is None or not (count := _common(messages, nearest.messages)):
        return None
    if other != context:
        return Fork(nearest.id, count, "tools")
    return Fork(nearest.id, count, _reason(messages, nearest.messages, count))


def _common(messages: Sequence[Message], others: Sequence[Message]) -> int:
    pairs = zip(messages, others, strict=False)
    return len([*itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)])


def _reason(messages: Sequence[Message], recorded: Sequence[Message], count: int) -> str:
    """Why `messages` do not continue `recorded`; the first `count` of both are the same."""
    if count == len(messages):
        return "retried"
    if count == len(recorded):  # it could be continued, but for the template
        return "template"
    new, old = messages[count], recorded[count]
    if new["role"] == old["role"] == "assistant":
        return "thinking" if _lacks_thought(new, old) else "edited_answer"
    answered = any(message["role"] == "assistant" for message in messages[:count])
    if answered and count == len(messages) - 1 == len(recorded) - 2:  # in place of the last one
        return "edited_message"
    if new in recorded[count + 1 :] or (answered and len(messages) <= len(recorded)):
        return "shortened"
    return "edited_message" if answered else "other_conversation"


def _lacks_thought(new: Message, old: Message) -> bool:
    """Whether the two differ in their thoughts only."""
    first, second = (
        {name: value for name, value in message.items() if name not in THOUGHTS}
        | {"content": str(message.get("content")).rpartition(END_OF_THOUGHT)[2].strip()}
        for message in (new, old)
    )
    return first == second
