"""Converts every accepted form of a prompt into messages, token ids or plain text, by attributes:
it imports no library of arrays, tables or messages."""

from __future__ import annotations

import contextlib
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pydantic_core import from_json

from _inf.errors import PromptError, at_fault, did_you_mean, shown
from _inf.types import Message, Prompt, as_list, python_value

Text: TypeAlias = "list[Message] | list[int] | str"
Form: TypeAlias = "Text | Prompt"  # a `Prompt` is a row to continue

ROLES = ("system", "developer", "user", "assistant", "tool")
# Newer clients call `reasoning_content`, the name that templates read, `reasoning`. `cache_control`
# of messages and parts says to other servers what to keep; it is no part of a prompt.
REASONING, CACHE = ("reasoning_content", "reasoning"), "cache_control"
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", *REASONING, CACHE)
PART_KEYS = ("type", "text", CACHE)
OF_ROWS = ("prompt_token_ids", "weight_versions", "finish_reason")
TOKEN_IDS, TEXT = "prompt_token_ids", "text"
FORMS = (
    'a prompt is a string, a list of {"role", "content"} messages, {"prompt_token_ids": [...]}, '
    '{"text": "..."} for text without the chat template, or a row that pause("abort") ended'
)


class LaterTurn(list[Any]):
    """Messages or token ids of a conversation that continues: only `max_model_len` bounds them, and
    not `prompt_length`."""


def normalize(prompts: object) -> list[Form]:
    """Return messages, token ids or plain text per prompt; `"text"` is one user message. An empty
    list is an empty batch."""
    forms = []
    for index, prompt in enumerate(listed_prompts(prompts)):
        with at_fault(index=index):
            forms.append(form_of(prompt, index))
    return forms


def listed_prompts(prompts: object) -> Sequence[Any]:
    """The prompts of a call: a bare list of messages is one conversation, not a batch."""
    listed = _listed(prompts)
    return [prompts] if listed is None or (listed and all(map(_is_message, listed))) else listed


def _listed(value: object) -> Sequence[Any] | None:
    """Return a sequence, array, column or tensor as a sequence; None for anything else."""
    if isinstance(value, str | bytes | bytearray | Mapping) or _is_object(value):
        return None
    values = as_list(value)
    return values if isinstance(values, Sequence) and not isinstance(values, str | bytes) else None


def object_array(values: Sequence[Any]) -> Any:
    """Return a one-dimensional numpy array of Python objects of any lengths, as verl's batches
    hold them."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # `array[:] = values` would look into lists
        array[index] = value
    return array


def _is_message(value: object) -> bool:
    if isinstance(value, Mapping):
        return "role" in value or not {TOKEN_IDS, TEXT}.intersection(value)
    return _is_object(value)


def _is_object(value: object) -> bool:
    """Whether a value is a message object, with attributes instead of keys."""
    return not isinstance(value, type) and hasattr(value, "role") and hasattr(value, "content")


def _is_row(value: object) -> bool:
    """Whether a value is an answer of `generate`, or a saved one."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in OF_ROWS)


def _fields(message: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a message, a mapping or an object; None for anything else."""
    if isinstance(message, Mapping):
        return message
    if not _is_object(message):
        return None
    if hasattr(message, "model_dump"):  # pydantic, and so OpenAI's
        return dict(message.model_dump())
    return {key: getattr(message, key) for key in MESSAGE_KEYS if hasattr(message, key)}


def form_of(prompt: object, index: int) -> Form:
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError(f"prompt {index} is an empty string; write something in it.")
        message: Message = {"role": "user", "content": str.__str__(prompt)}
        return [message]
    if _is_row(prompt):
        from _inf.parts.continued.rows import continued_row

        return continued_row(prompt, index)
    if _is_object(prompt) or (isinstance(prompt, Mapping) and "role" in prompt):
        raise PromptError(f"prompt {index} is one message; put it into a list: [message].")
    if isinstance(prompt, Mapping):
        return _ids_or_text(prompt, index)
    messages = _listed(prompt)
    if messages is None:
        raise PromptError(f"prompt {index} is {kind(prompt)}; {FORMS}.")
    if not messages:
        raise PromptError(f"prompt {index} is a conversation without messages; add one.")
    return [_message(message, index, position) for position, message in enumerate(messages)]


def _ids_or_text(prompt: Mapping[str, Any], index: int) -> list[int] | str:
    keys = set(prompt)
    if keys == {TOKEN_IDS}:
        ids = id_list(prompt[TOKEN_IDS], f"prompt {index}: {TOKEN_IDS}")
        return LaterTurn(ids) if isinstance(prompt[TOKEN_IDS], LaterTurn) else ids
    if keys != {TEXT}:
        named = shown(sorted(prompt, key=lambda key: shown(key).strip("'")))
        raise PromptError(f"prompt {index} is a mapping with the keys {named}; {FORMS}.")
    if not isinstance(prompt[TEXT], str):
        raise PromptError(f"prompt {index}: {TEXT} is {kind(prompt[TEXT])}; it must be a str.")
    return str.__str__(prompt[TEXT])


def id_list(ids: object, where: str) -> list[int]:
    ids = as_list(ids)
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise PromptError(f"{where} is {kind(ids)}; it takes a list of ints.")
    if not ids:
        raise PromptError(f"{where} is empty; it takes at least one token id.")
    if {*map(type, ids)} == {int}:  # as nearly always; a look at each takes a hundred times as long
        return list(ids)
    return [_token_id(value, f"{where}[{index}]") for index, value in enumerate(ids)]


def _token_id(value: Any, where: str) -> int:
    try:
        if "bool" in str(getattr(value, "dtype", type(value))):  # numpy's and torch's bools too
            raise TypeError
        return operator.index(value)
    except Exception:  # a tensor on the meta device raises another one
        raise PromptError(f"{where} is {kind(value)}; it must be an int.") from None


def _message(message: object, index: int, position: int) -> Message:
    where = f"prompt {index}, message {position}"
    fields = _fields(message)
    if fields is None:
        raise PromptError(f"{where} is {kind(message)}; {FORMS}.")
    kept = _known_fields(fields, MESSAGE_KEYS, where)
    listed = _listed(kept.get("tool_calls", ()))
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
    kept |= {"role": str.__str__(role), "content": _text(fields["content"], f"{where}: content")}
    return {**kept, **thought, **({"tool_calls": calls} if calls else {})}


def _reasoning(fields: dict[str, Any], where: str) -> dict[str, str]:
    """Take a message's thought out of its fields; return it under the templates' name."""
    found = {name: fields.pop(name) for name in REASONING if name in fields}
    for name, thought in found.items():
        if not isinstance(thought, str):
            raise PromptError(f"{where}: {name} is {kind(thought)}; it must be a str.")
    thoughts = set(found.values()) - {""}
    if len(thoughts) > 1:
        raise PromptError(f"{where}: {' and '.join(found)} differ; give one of them.")
    return {REASONING[0]: str.__str__(next(iter(thoughts), ""))} if found else {}


def _known_fields(fields: Mapping[Any, Any], known: Sequence[str], where: str) -> dict[str, Any]:
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


def _text(content: object, where: str) -> str:
    """Return a message's content: text, or the joined texts of OpenAI's parts."""
    if isinstance(content, str):
        return str.__str__(content)
    parts = _listed(content)
    if parts is None:
        raise PromptError(f"{where} is {kind(content)}; it must be text (a str) or text parts.")
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(parts))


def _part(part: Any, where: str) -> str:
    form = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(form, str) or form != "text":
        what = kind(part) if form is None else f"a part of type {shown(form)}"
        raise PromptError(
            f'{where} is {what}; only text is supported: {{"type": "text", "text": "..."}}.'
        )
    text = _known_fields(part, PART_KEYS, where).get("text")
    if not isinstance(text, str):
        raise PromptError(f"{where}: text is {kind(text)}; it must be a str.")
    return str.__str__(text)


def _call(call: Any, where: str) -> dict[str, Any]:
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
