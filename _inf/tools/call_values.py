"""Makes `ToolCall`s of what readers find in a model's text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from _inf.errors import shown
from _inf.types import Tool, ToolCall

# Levels of brackets in arguments; also bounds the work on calls that are never closed.
DEEPEST = 50


class Unreadable(ValueError):
    """A model's text is not a valid call; the message says why."""


def call_of(name: str, arguments: object, raw_text: str, start: int, end: int) -> ToolCall:
    """Return a call whose arguments are an object, JSON text (even twice), or null."""
    for _ in range(2):
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                fault = f"the arguments are not JSON: {error}"
                return ToolCall(name, {}, raw_text, start, end, fault)
    if not isinstance(arguments, dict | None):
        fault = f"the arguments are {shown(arguments)}, not an object"
        return ToolCall(name, {}, raw_text, start, end, fault)
    if _deeper(arguments, DEEPEST):
        fault = f"the arguments are nested more than {DEEPEST} levels deep"
        return ToolCall(name, {}, raw_text, start, end, fault)
    return ToolCall(name, arguments or {}, raw_text, start, end)


def _deeper(value: object, levels: int) -> bool:
    """Whether lists and dicts are nested deeper than that. Python's `json` reads a thousand levels;
    what copies, checks or writes them fails at some hundred."""
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(part, levels - 1) for part in parts)


def wrong(text: str, start: int, end: int, fault: object, name: str = "") -> ToolCall:
    return ToolCall(name, {}, text[start:end], start, end, str(fault))


def typed_values(
    values: Iterable[tuple[str, str]], name: str, tools: Sequence[Tool]
) -> dict[str, Any]:
    """Return the arguments of the tool `name`, whose values stand in the text as they are: strings
    without quotes. The tool's schema says what is a string."""
    schemas = {tool.name: tool.parameters for tool in tools}
    properties = schemas.get(name, {}).get("properties")
    types: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    return {key: _typed(text, types.get(key)) for key, text in values}


def _typed(text: str, schema: object) -> Any:
    """Convert a value: a string if the schema says so or it is not JSON, else JSON."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string":
        return text
    if kind == "boolean" and text in ("True", "False"):  # as Qwen3.5's template writes them
        return text == "True"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if _deeper(value, DEEPEST):
        raise Unreadable(f"a value is nested more than {DEEPEST} levels deep")
    return value
