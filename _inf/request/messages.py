"""Converts a message of a prompt, a mapping or an object, into one for a chat template."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from _inf.errors import PromptError, did_you_mean, shown
from _inf.types import JSON, Message, Prompt, as_sequence, python_value

if TYPE_CHECKING:
    from _inf.parts.part import Reader, Readers

ROLES = ("system", "developer", "user", "assistant", "tool")
# Newer clients call `reasoning_content`, the name that templates read, `reasoning`. `cache_control`
# of messages and parts says to other servers what to keep; it is no part of a prompt.
REASONING, CACHE = ("reasoning_content", "reasoning"), "cache_control"
TEXT_ONLY: Readers = MappingProxyType({})  # where no part reads other content
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", *REASONING, CACHE)
PART_KEYS = ("type", "text", CACHE)
FORMS = (
    'a prompt is a string, a list of {"role", "content"} messages, {"prompt_token_ids": [...]}, '
    '{"text": "..."} for text without the chat template, or a row that pause("abort") ended'
)


def form_of_object(prompt: object, index: int) -> Prompt:
    """A prompt that was rendered before, or a row of `generate`, which is continued, as a prompt.
    Refuses all other objects."""
    if isinstance(prompt, Prompt):
        return dataclasses.replace(prompt, index=index)
    from _inf.parts.continued.rows import continued_row, is_row

    if is_row(prompt):
        return continued_row(prompt, index)
    if is_object(prompt):
        raise one_message(index)
    raise PromptError(f"prompt {index} is {kind(prompt)}; {FORMS}.")


def one_message(index: int) -> PromptError:
    return PromptError(f"prompt {index} is one message; put it into a list: [message].")


def is_object(value: object) -> bool:
    """Whether a value is a message object, with attributes instead of keys."""
    return not isinstance(value, type) and hasattr(value, "role") and hasattr(value, "content")


def _fields(message: object) -> Mapping[str, object] | None:
    """Return the fields of a message, a mapping or an object; None for anything else."""
    if isinstance(message, Mapping):
        return message
    if not is_object(message):
        return None
    if hasattr(message, "model_dump"):  # pydantic, and so OpenAI's
        return dict(message.model_dump())
    return {key: getattr(message, key) for key in MESSAGE_KEYS if hasattr(message, key)}


def message_of(message: object, index: int, position: int, readers: Readers = TEXT_ONLY) -> Message:
    where = f"prompt {index}, message {position}"
    fields = _fields(message)
    if fields is None:
        raise PromptError(f"{where} is {kind(message)}; {FORMS}.")
    kept = _known_fields(fields, MESSAGE_KEYS, where)
    listed = as_sequence(kept.get("tool_calls", ()))
    if listed is None:
        raise PromptError(f"{where}: tool_calls is {kind(kept['tool_calls'])}; it must be a list.")
    calls = [_call(call, f"{where}, tool_calls[{n}]") for n, call in enumerate(listed)]
    thought = _reasoning(kept, where)
    if (calls or any(thought.values())) and fields.get(
        "content"
    ) is None:  # as OpenAI's API answers
        fields = {**fields, "content": ""}
    for key in ("role", "content"):
        if key not in fields:
            raise PromptError(f"{where} has no {key!r}; a message needs role and content.")
    role = fields["role"]
    if not isinstance(role, str) or role not in ROLES:
        hint = did_you_mean(shown(role), ROLES) or "."
        raise PromptError(f"{where}: unknown role {shown(role)}{hint} Roles: {', '.join(ROLES)}.")
    # A str that is also an Enum would be written with its class's name.
    kept |= {
        "role": str.__str__(role),
        "content": _content(fields["content"], f"{where}: content", readers),
    }
    return {**kept, **thought, **({"tool_calls": calls} if calls else {})}


def _reasoning(fields: dict[str, object], where: str) -> dict[str, str]:
    """Take a message's thought out of its fields; return it under the templates' name."""
    found = {name: fields.pop(name) for name in REASONING if name in fields}
    for name, thought in found.items():
        if not isinstance(thought, str):
            raise PromptError(f"{where}: {name} is {kind(thought)}; it must be a str.")
    thoughts = set(found.values()) - {""}
    if len(thoughts) > 1:
        raise PromptError(f"{where}: {' and '.join(found)} differ; give one of them.")
    return {REASONING[0]: str.__str__(next(iter(thoughts), ""))} if found else {}


def _known_fields(
    fields: Mapping[str, object], known: Sequence[str], where: str
) -> dict[str, object]:
    """Return the fields without `CACHE` and empty ones, which `model_dump()` and tables contain."""
    kept = {
        key: value
        for key, value in fields.items()
        if not (value is None or is_empty(value)) or (key in known and isinstance(value, str))
    }
    for key in kept:
        if key not in known:
            raise PromptError(
                f"{where}: unknown key {shown(key)}{did_you_mean(shown(key), known) or '.'}"
            )
    kept.pop(CACHE, None)
    return kept


def is_empty(value: Any) -> bool:
    try:
        return len(value) == 0
    except Exception:  # it has no length
        return False


def _content(content: object, where: str, readers: Readers) -> str | list[JSON]:
    """Return a message's content: text, the joined texts of OpenAI's parts, or a list of parts if
    one of them is not text."""
    if isinstance(content, str):
        return str.__str__(content)
    parts = as_sequence(content)
    if parts is None:
        raise PromptError(f"{where} is {kind(content)}; it must be text (a str) or text parts.")
    checked = [_part(part, f"{where}[{index}]", readers) for index, part in enumerate(parts)]
    texts = [part["text"] for part in checked if part["type"] == "text"]
    return "".join(texts) if len(texts) == len(checked) else checked


def _part(part: Any, where: str, readers: Readers) -> JSON:
    form = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(form, str) or form != "text":
        if isinstance(form, str) and form in readers:
            return readers[form].content_of(part, where)
        what = kind(part) if form is None else f"a part of type {shown(form)}"
        raise PromptError(
            f'{where} is {what}; only text is supported: {{"type": "text", "text": "..."}}.'
        )
    text = _known_fields(part, PART_KEYS, where).get("text")
    if not isinstance(text, str):
        raise PromptError(f"{where}: text is {kind(text)}; it must be a str.")
    return {"type": "text", "text": str.__str__(text)}


def reader_of(messages: Sequence[Message], readers: Readers) -> Reader | None:
    """What reads these messages; None: they have text alone."""
    for message in messages:
        if isinstance(message["content"], list):
            [*kinds] = {part["type"] for part in message["content"]} - {"text"}
            return readers[kinds[0]]
    return None


def _call(call: Any, where: str) -> dict[str, object]:
    """Return a call in OpenAI's form, with parsed arguments: templates encode them again."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise PromptError(
            f'{where}: {shown(call)} is not {{"type": "function", "function": '
            '{"name": ..., "arguments": {...}}}.'
        )
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    if isinstance(arguments, str):
        # A model's arguments may be invalid JSON, or what no prompt can hold: infinite numbers,
        # halves of characters, hundreds of lists in each other.
        with contextlib.suppress(ValueError, RecursionError):
            parsed = from_json(arguments)
            json.dumps(parsed, allow_nan=False)
            arguments = parsed
    try:
        arguments = python_value(arguments)
    except RecursionError:
        raise PromptError(f"{where}: the arguments are nested too deeply.") from None
    kept = {key: value for key, value in call.items() if value is not None}
    return {"type": "function", **kept, "function": {**function, "arguments": arguments}}


def kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
