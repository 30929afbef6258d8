"""The conversations of `inf check turns`: a file's, or a built-in one that a template can show."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _inf.errors import InferenceError, PromptError, error_text
from _inf.request.prompts import normalize
from _inf.tools.definition import as_tools
from _inf.types import Message, Tool

_FACTORS = {"a": {"type": "number"}, "b": {"type": "number"}}
_PARAMETERS = {"type": "object", "properties": _FACTORS, "required": ["a", "b"]}
_ABOUT = {"name": "multiply", "description": "Multiply two numbers.", "parameters": _PARAMETERS}
_CALL_ID = "call00100"  # Mistral's template requires nine letters and digits
_CALL = {"name": "multiply", "arguments": {"a": 12, "b": 7}}
_SYSTEM: Message = {"role": "system", "content": "You answer briefly."}
_QUESTION: Message = {"role": "user", "content": "What is 12 * 7?"}
_CALLED: list[Message] = [
    {
        "role": "assistant",
        "content": "<think>\nI should use the tool.\n</think>\n\nI will multiply.",
        "tool_calls": [{"id": _CALL_ID, "type": "function", "function": _CALL}],
    },
    {"role": "tool", "name": "multiply", "tool_call_id": _CALL_ID, "content": "84"},
]
_REST: list[Message] = [
    {"role": "assistant", "content": "<think>\nThe result is 84.\n</think>\n\nIt is 84."},
    {"role": "user", "content": "And half of that?"},
    {"role": "assistant", "content": "<think>\n84 / 2 = 42.\n</think>\n\nIt is 42."},
]


@dataclasses.dataclass(frozen=True)
class Conversation:
    """messages: checked, as `generate` takes them; the first is no assistant's, and at least one
    is. left_out: what the built-in conversation lacks, and why."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    left_out: str = ""

    @property
    def answers(self) -> list[int]:
        """The indices of the assistant's messages."""
        return [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]

    def next_answer(self, index: int) -> int:
        """The index of the first answer after `index`, or the number of messages."""
        return next((i for i in self.answers if i > index), len(self.messages))


def read_conversation(path: Path) -> Conversation:
    """Read a list of messages, or {"messages": [...], "tools": [...]} with tools in OpenAI's form.

    Raises `PromptError` or `ToolError`, which names the file and the place in it.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as failure:
        raise PromptError(f"{path} cannot be read: {failure.strerror}.") from None
    except (ValueError, RecursionError) as failure:  # also bytes that are not UTF-8
        raise PromptError(f"{path} is not JSON: {failure}.") from None
    form = value if isinstance(value, Mapping) else {"messages": value}
    if unknown := sorted(form.keys() - {"messages", "tools"}):
        raise PromptError(f"{path}: unknown key {unknown[0]!r}. Keys: messages, tools.")
    talk = form.get("messages")
    if not isinstance(talk, list) or not all(isinstance(message, Mapping) for message in talk):
        raise PromptError(
            f'{path} is neither a list of messages nor {{"messages": [...], "tools": [...]}}.'
        )
    try:
        [messages] = normalize([talk])
        return _checked(messages, as_tools(form.get("tools") or []))
    except InferenceError as failure:
        raise type(failure)(f"{path}: {str(failure).removeprefix('prompt 0, ')}") from None


def _checked(messages: Any, tools: Sequence[Tool]) -> Conversation:
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise PromptError("no message is an assistant's; there is no turn to compare.")
    if roles[0] == "assistant":
        raise PromptError("message 0 is an assistant's; begin with a system or user message.")
    return Conversation(messages, tools)


def built_in(rendered: Callable[[Conversation], object]) -> Conversation:
    """Return the largest built-in conversation for which `rendered` raises nothing.

    The whole one has a system message, a tool call, its result and thinking in each answer.
    """
    called, plain = [_QUESTION, *_CALLED, *_REST], [_QUESTION, *_REST]
    tools, refused = as_tools([{"type": "function", "function": _ABOUT}]), ""
    for messages, own_tools, lacks in (
        ([_SYSTEM, *called], tools, ""),
        (called, tools, "a system message"),
        ([_SYSTEM, *plain], [], "tools"),
        (plain, [], "tools and a system message"),
    ):
        why = f"the built-in conversation is used without {lacks}: the template refused {refused}"
        conversation = Conversation(messages, own_tools, why if lacks else "")
        try:
            rendered(conversation)
            return conversation
        except Exception as failure:  # a template may raise anything
            refused = refused or f"the whole one ({error_text(failure)})"
    raise PromptError(
        f"the chat template refused {refused} and shorter ones; give a conversation of your own."
    )
