"""Makes `ToolCall`s of what readers find in a model's text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from _inf.errors import ToolError, shown
from _inf.tools.argument_types import ArgumentTypes
from _inf.types import JSON, T, Tool, ToolCall

# Levels of brackets in arguments; also bounds the work on calls that are never closed.
DEEPEST = 50
PYTHON = {"True": True, "False": False, "None": None}  # as Qwen3.5's template writes them


class Unreadable(ValueError):
    """A model's text is not a valid call; the message says why."""


def call_of(name: str, arguments: object, raw_text: str, start: int, end: int) -> ToolCall:
    """Return a call whose arguments are an object, JSON text (even twice, or empty), or null."""
    try:
        return ToolCall(name, _object_of(arguments), raw_text, start, end)
    except Unreadable as failure:
        return ToolCall(name, {}, raw_text, start, end, str(failure))


def _object_of(arguments: object) -> JSON:
    for _ in range(2):
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments.strip() or "{}")
            except (ValueError, RecursionError) as error:
                raise Unreadable(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict | None):
        raise Unreadable(f"the arguments are {shown(arguments)}, not an object")
    if _deeper(arguments, DEEPEST):
        raise Unreadable(f"the arguments are nested more than {DEEPEST} levels deep")
    return arguments or {}


def _deeper(value: object, levels: int) -> bool:
    """Whether lists and dicts are nested deeper than that. Python's `json` reads a thousand levels;
    what copies, checks or writes them fails at some hundred."""
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(part, levels - 1) for part in parts)


def wrong(text: str, start: int, end: int, fault: object, name: str = "") -> ToolCall:
    return ToolCall(name, {}, text[start:end], start, end, str(fault))


def typed_values(values: Iterable[tuple[str, str]], name: str, tools: Sequence[Tool]) -> JSON:
    """Return the arguments of the tool `name`, whose values stand in the text as they are: strings
    without quotes. The tool's schema says what is a string."""
    parameters = next((tool.parameters for tool in tools if tool.name == name), {})
    types = ArgumentTypes(parameters)
    try:
        return {key: _typed(key, text, types) for key, text in dict(values).items()}
    except ToolError as failure:
        raise Unreadable(f"the schema of {name} cannot be applied: {failure}") from None


def _typed(key: str, text: str, types: ArgumentTypes) -> object:
    """Convert a value: null where the schema takes null, a string where it takes text, otherwise
    JSON, or what Qwen3.5's template writes."""
    if text in PYTHON:
        right = types.take(key, PYTHON[text]) and not types.take(key, text)
        return PYTHON[text] if right else text
    value = json_or_text(text)
    if isinstance(value, str) and value == text:
        return text
    if value is None and types.take(key, None):
        return None
    return bounded(types.chosen(key, text, value))


def json_or_text(text: str) -> object:
    """Return the JSON value that a text is; the text if it is none."""
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return text


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def bounded(value: T) -> T:
    if _deeper(value, DEEPEST):
        raise Unreadable(f"a value is nested more than {DEEPEST} levels deep")
    return value
