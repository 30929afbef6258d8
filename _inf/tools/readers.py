"""Reads tool calls with exact positions in five formats: hermes, json, xml, function, pythonic.

A call that cannot be read has an `error`. No reader raises, and their time is linear in the text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import unescape

from _inf.errors import shown
from _inf.types import Tool, ToolCall

# Levels of brackets in arguments; also bounds the work on calls that are never closed.
_DEEPEST = 50


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
    if _deeper(arguments, _DEEPEST):
        fault = f"the arguments are nested more than {_DEEPEST} levels deep"
        return ToolCall(name, {}, raw_text, start, end, fault)
    return ToolCall(name, arguments or {}, raw_text, start, end)


def _deeper(value: object, levels: int) -> bool:
    """Whether lists and dicts are nested deeper than that. Python's `json` reads a thousand levels;
    what copies, checks or writes them fails at some hundred."""
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(part, levels - 1) for part in parts)


def _wrong(text: str, start: int, end: int, fault: object, name: str = "") -> ToolCall:
    return ToolCall(name, {}, text[start:end], start, end, str(fault))


# ─── hermes and json ───

_DECODER = json.JSONDecoder()
_OPEN = re.compile(r"<tool_call>\s*")
_CLOSE = re.compile(r"\s*</tool_call>")
_BROKEN_END = re.compile(r"</tool_call>|(?=<tool_call>)|\Z")
_OBJECT = re.compile(r'\{\s*"(?:tool|name|arguments|parameters)"\s*:')
_OBJECT_LINE = re.compile(rf"\n(?={_OBJECT.pattern})")


def _json_at(text: str, start: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise Unreadable("its JSON is nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None


def _json_call(text: str, start: int, end: int, value: object, name_key: str) -> ToolCall:
    if not isinstance(value, dict):
        return _wrong(text, start, end, f"{shown(value)} is not an object")
    name = value.get(name_key, value.get("name"))
    if not isinstance(name, str) or not name:
        return _wrong(text, start, end, f'it has no "{name_key}"')
    arguments = value.get("arguments", value.get("parameters"))
    return call_of(name, arguments, text[start:end], start, end)


def read_hermes(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Read `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, on one or more lines."""
    calls, end = [], 0
    while match := _OPEN.search(text, end):
        start = match.start()
        try:
            value, end = _json_at(text, match.end())
            close = _CLOSE.match(text, end)
            if close is None:
                raise Unreadable("</tool_call> does not follow its JSON")
            end = close.end()
            calls.append(_json_call(text, start, end, value, "name"))
        except Unreadable as failure:
            end = _end(_BROKEN_END, text, match.end())
            calls.append(_wrong(text, start, end, failure))
    return calls


def read_json(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Read `{"tool": ..., "arguments": {...}}` in any text; also "name" and "parameters"."""
    calls, end = [], 0
    while match := _OBJECT.search(text, end):
        start = match.start()
        try:
            value, end = _json_at(text, start)
            if "tool" in value or ("name" in value and value.keys() & {"arguments", "parameters"}):
                calls.append(_json_call(text, start, end, value, "tool"))
        except Unreadable as failure:
            # Skip to the next line that begins an object: objects in a broken call are no calls.
            end = _end(_OBJECT_LINE, text, start + 1)
            if '"arguments"' in text[start:end] or '"tool"' in text[start:end]:
                calls.append(_wrong(text, start, end, failure))
    return calls


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.search(text, start)
    return match.end() if match else len(text)


# ─── xml ───

_INVOKE = re.compile(r"<invoke>(.*?)(</invoke>|(?=<invoke>)|\Z)", re.DOTALL)
_INVOKED = re.compile(
    r"\s*<tool_name>\s*([^<\s]+)\s*</tool_name>\s*(?:<parameters>(.*)</parameters>\s*)?", re.DOTALL
)
_VALUE = re.compile(r"\s*<([^<>/\s]+)>(.*?)</\1>\s*", re.DOTALL)


def read_xml(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Read `<invoke><tool_name>NAME</tool_name><parameters><key>value</key></parameters></invoke>`,
    with the types of the tool's schema."""
    calls = []
    for match in _INVOKE.finditer(text):
        name, invoked = "", _INVOKED.fullmatch(match[1])
        try:
            if not match[2]:
                raise Unreadable("it has no </invoke>")
            if not invoked:
                raise Unreadable("inside <invoke> there must be <tool_name> and then <parameters>")
            name = invoked[1]
            arguments = _xml_arguments(invoked[2] or "", name, tools)
            calls.append(ToolCall(name, arguments, match[0], *match.span()))
        except Unreadable as failure:
            calls.append(_wrong(text, *match.span(), failure, name))
    return calls


def _xml_arguments(inside: str, name: str, tools: Sequence[Tool]) -> dict[str, Any]:
    schemas = {tool.name: tool.parameters for tool in tools}
    properties = schemas.get(name, {}).get("properties")
    types: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    arguments, end = {}, 0
    while match := _VALUE.match(inside, end):
        arguments[match[1]] = _typed(unescape(match[2]), types.get(match[1]))
        end = match.end()
    if rest := inside[end:].strip():
        raise Unreadable(f"{shown(rest)} is not <key>value</key>")
    return arguments


def _typed(text: str, schema: object) -> Any:
    """Convert an XML value: a string if the schema says so or it is not JSON, else JSON."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if _deeper(value, _DEEPEST):
        raise Unreadable(f"a value is nested more than {_DEEPEST} levels deep")
    return value


# ─── function and pythonic ───

_FUNCTION = re.compile(r"(?<![\w.-])([A-Za-z_][\w.-]*)\(")
_KEYWORD = re.compile(r"\s*[A-Za-z_]\w*\s*=(?!=)")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[()\[\]{}]')


def read_function(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Read `name(key="value", ...)` with literals. Text without a keyword, or that cannot be read,
    counts as a call only if it has a tool's name."""
    names = {tool.name for tool in tools}
    calls, end = [], 0
    while match := _FUNCTION.search(text, end):
        end = match.end()
        if match[1] in names or _KEYWORD.match(text, end):
            call = _function_call(text, match)
            if match[1] in names or not call.error:
                calls.append(call)
                end = call.end_pos
    return calls


def read_pythonic(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Read `[name(key="value"), ...]`: calls of the function format inside a list."""
    calls: list[ToolCall] = []
    end, listed = 0, False
    for call in read_function(text, tools):
        before = text[end : call.start_pos].rstrip()
        listed = before.endswith("[") or (listed and before.strip() == ",")
        calls += [call] if listed else []
        end = call.end_pos
    return calls


def _function_call(text: str, match: re.Match[str]) -> ToolCall:
    start, bracket = match.start(), match.end() - 1
    try:
        end = _closing(text, bracket)
        return ToolCall(match[1], _literals(text[bracket:end]), text[start:end], start, end)
    except Unreadable as failure:
        end = text.find("\n", bracket)
        return _wrong(text, start, end if end >= 0 else len(text), failure, match[1])


def _closing(text: str, start: int) -> int:
    """Find the end of the bracket at `start`, past strings and other brackets."""
    depth = 0
    for piece in _STRING_OR_BRACKET.finditer(text, start):
        depth += (piece[0] in "([{") - (piece[0] in ")]}")
        if depth == 0:
            return piece.end()
        if depth > _DEEPEST:
            raise Unreadable("its brackets are nested too deeply")
    raise Unreadable("its bracket is not closed")


def _literals(brackets: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f{brackets}", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Unreadable('it is not name(key="value", ...)') from None
    if not isinstance(call, ast.Call) or call.args or any(not k.arg for k in call.keywords):
        raise Unreadable('every argument needs its name: name(key="value", ...)')
    arguments = {}
    for keyword in call.keywords:
        try:
            arguments[str(keyword.arg)] = json.loads(json.dumps(ast.literal_eval(keyword.value)))
        except (TypeError, ValueError, MemoryError, RecursionError):
            raise Unreadable(f"the value of {keyword.arg} is not a literal") from None
    return arguments


READERS: dict[str, Callable[[str, Sequence[Tool]], list[ToolCall]]] = {
    "hermes": read_hermes,  # SGLang's parser needs newlines in the tags and drops broken JSON
    "json": read_json,
    "xml": read_xml,
    "function": read_function,
    "pythonic": read_pythonic,  # SGLang's regular expression takes minutes on twenty arguments
}
