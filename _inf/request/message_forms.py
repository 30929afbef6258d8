"""The forms in which chat templates take instructions of developers, and calls of tools.

render: a template, which may raise any exception on a message that it does not expect.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = "Mapping[str, Any]"
DEVELOPER = "developer"  # the role in whose name newer clients of OpenAI's API instruct
QUESTION: Message = {"role": "user", "content": "Hi"}


def shows_developer(render: Callable[[Sequence[Message]], str]) -> bool:
    """Whether it shows a developer's text after a system message: many templates skip or refuse the
    role, and OpenAI's shows it only in place of a system message."""
    word = placeholder()
    before: Message = {"role": "system", "content": "Be brief."}
    try:
        return word in render([before, {"role": DEVELOPER, "content": word}, QUESTION])
    except Exception:
        return False


def form_of_calls(render: Callable[[Sequence[Message]], str]) -> Callable[[Message], Message]:
    """The form of a message with calls that the template shows. Most encode the arguments, an
    object; those of DeepSeek R1 and V3 concatenate their JSON text, and some of them show a call
    only where the content is null, which Transformers 5 leaves out."""
    mark = placeholder()
    turn = [QUESTION, *call_and_result(1, "", name=mark, arguments={"x": "a"})]
    for form in (_as_it_is, _with_text, _without_content, _with_text_alone):
        with contextlib.suppress(Exception):
            shown = render([form(message) for message in turn])
            if mark in shown and "{'x'" not in shown:  # as Python shows a dict
                return form
    return _as_it_is


def placeholder() -> str:
    """A word to search in rendered text. It is drawn anew, so that nobody can write it into a
    message: what follows it would count as what follows the answer."""
    return f"PLACEHOLDER{secrets.token_hex(16)}"


def _as_it_is(message: Message) -> Message:
    return message


def _with_text(message: Message) -> Message:
    """Return the message with its calls' arguments as JSON texts."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_text_arguments(call) for call in message["tool_calls"]]}


def _text_arguments(call: Mapping[str, Any]) -> dict[str, object]:
    function, arguments = call["function"], call["function"]["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _without_content(message: Message) -> Message:
    """Return the message with null for its content if it has calls and no text."""
    empty = message.get("tool_calls") and not message["content"]
    return {**message, "content": None} if empty else message


def _with_text_alone(message: Message) -> Message:
    return _without_content(_with_text(message))


def call_and_result(
    turn: int, result: str, *, name: str = "f", arguments: Mapping[str, object] | None = None
) -> list[Message]:
    """A call and its result; Mistral's template requires ids of nine characters."""
    call_id = f"call{turn:05}"
    function = {"name": name, "arguments": dict(arguments or {})}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "content": result, "tool_call_id": call_id},
    ]


def by_system(messages: Sequence[Message]) -> list[Message]:
    """Let the system say what developers say: the first instructions in one message, because many
    templates know only one system message."""
    renamed: list[Message] = []
    for message in messages:
        if message["role"] == DEVELOPER:
            message = {**message, "role": "system"}
            if [before["role"] for before in renamed] == ["system"]:
                content = f"{renamed[0]['content']}\n\n{message['content']}"
                renamed = [{**renamed[0], "content": content}]
                continue
        renamed.append(message)
    return renamed
