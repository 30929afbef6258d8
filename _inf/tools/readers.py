"""Readers of the tool call formats whose positions are exact: hermes, json, xml, function and
pythonic.

In: a text and the tools, which tell an XML value's type and a function call from prose. Out: a
`Read` for each call, in order. None of them raises, and each is linear in the text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import unescape

from _inf.errors import shown
from _inf.types import Tool

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Read:
    """One call: its span in the text, and why it cannot be read, if it cannot."""

    start: int
    end: int
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class _Unreadable(ValueError):
    """The message says why."""


def _json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value at `start`, and where it ends."""
    try:
        return _DECODER.raw_decode(text, _SPACE.match(text, start).end())  # type: ignore[union-attr]
    except RecursionError:
        raise _Unreadable("its JSON is nested too deeply") from None
    except ValueError as error:
        raise _Unreadable(f"it is not JSON: {error}") from None


def _named(value: Any, start: int, end: int, name_keys: Sequence[str]) -> Read:
    """A call in a JSON object."""
    if not isinstance(value, dict):
        return Read(start, end, error=f"{shown(value)} is not an object")
    name = next((value[key] for key in name_keys if key in value), None)
    if not isinstance(name, str) or not name:
        return Read(start, end, error=f'it has no "{name_keys[0]}"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # JSON in JSON
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return Read(start, end, name, error=f"the arguments are not JSON: {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return Read(start, end, name, error=f"the arguments are {shown(arguments)}, not an object")
    return Read(start, end, name, arguments)


# ─── hermes ───

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def read_hermes(text: str, tools: Sequence[Tool]) -> list[Read]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, on one line or several."""
    reads: list[Read] = []
    start = text.find(_OPEN)
    while start >= 0:
        body = start + len(_OPEN)
        try:
            value, end = _json_at(text, body)
            end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
            if not text.startswith(_CLOSE, end):
                raise _Unreadable(f"{_CLOSE} does not follow its JSON")
            end += len(_CLOSE)
            values = value if isinstance(value, list) and value else [value]
            reads += [_named(each, start, end, ("name",)) for each in values]
        except _Unreadable as failure:
            end = _hermes_end(text, body)
            reads.append(Read(start, end, error=str(failure)))
        start = text.find(_OPEN, end)
    return reads


def _hermes_end(text: str, body: int) -> int:
    """Where a broken call ends: at its closing tag, or before the next call."""
    close, after = text.find(_CLOSE, body), text.find(_OPEN, body)
    if close >= 0 and (after < 0 or close < after):
        return close + len(_CLOSE)
    return after if after >= 0 else len(text)


# ─── json ───

_KEYS = ("tool", "name")
_OBJECT = re.compile(r'\{\s*"(tool|name|arguments|parameters)"\s*:')
_NEXT_OBJECT = re.compile(r'\n(?=\{\s*"(tool|name|arguments|parameters)"\s*:)')


def read_json(text: str, tools: Sequence[Tool]) -> list[Read]:
    """`{"tool": ..., "arguments": {...}}` anywhere in the text; "name" and "parameters" too."""
    reads: list[Read] = []
    found = _OBJECT.search(text)
    while found:
        start = found.start()
        try:
            value, end = _json_at(text, start)
        except _Unreadable as failure:
            # Not at the next brace: what is inside a broken call is no call.
            following = _NEXT_OBJECT.search(text, start + 1)
            end = following.end() if following else len(text)
            if '"arguments"' in text[start:end] or '"tool"' in text[start:end]:
                reads.append(Read(start, end, error=str(failure)))
        else:
            if "tool" in value or ("name" in value and value.keys() & {"arguments", "parameters"}):
                reads.append(_named(value, start, end, _KEYS))
        found = _OBJECT.search(text, end)
    return reads


# ─── xml ───

_INVOKE = re.compile(r"<invoke>(.*?)(</invoke>|(?=<invoke>)|\Z)", re.DOTALL)
_CALL = re.compile(
    r"\s*<tool_name>\s*([^<\s]+)\s*</tool_name>\s*(?:<parameters>(.*)</parameters>\s*)?", re.DOTALL
)
_VALUE = re.compile(r"\s*<([^<>/\s]+)>(.*?)</\1>\s*", re.DOTALL)


def read_xml(text: str, tools: Sequence[Tool]) -> list[Read]:
    """`<invoke><tool_name>...</tool_name><parameters><key>value</key>...</parameters></invoke>`;
    what a value is, the tool's schema says."""
    reads = []
    for found in _INVOKE.finditer(text):
        start, end = found.span()
        call = _CALL.fullmatch(found[1])
        if not found[2]:
            reads.append(Read(start, end, error="it has no </invoke>"))
        elif not call:
            error = "inside <invoke> there must be <tool_name> and then <parameters>"
            reads.append(Read(start, end, error=error))
        else:
            reads.append(_read_invoke(start, end, call[1], call[2] or "", tools))
    return reads


def _read_invoke(start: int, end: int, name: str, inside: str, tools: Sequence[Tool]) -> Read:
    known = [tool.parameters for tool in tools if tool.name == name]
    types: Any = known[0].get("properties", {}) if known else {}
    arguments, place = {}, 0
    while found := _VALUE.match(inside, place):
        arguments[found[1]] = _typed(unescape(found[2]), types.get(found[1]))
        place = found.end()
    if inside[place:].strip():
        error = f"{shown(inside[place:].strip())} is not <key>value</key>"
        return Read(start, end, name, error=error)
    return Read(start, end, name, arguments)


def _typed(text: str, schema: Any) -> Any:
    """As the schema has it; without one, JSON where it is JSON."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if wanted == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# ─── function and pythonic ───

_NAME = r"[A-Za-z_][\w.-]*"
_FUNCTION = re.compile(rf"(?<![\w.-])({_NAME})\(")
_KEYWORD = re.compile(r"\s*[A-Za-z_]\w*\s*=(?!=)")
_LIST = re.compile(rf"\[\s*(?={_NAME}\()")
_PIECE = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|[()\[\]{}]')
_COMMAS = re.compile(r"[\s,]*")
_DEEPEST = 50


def read_function(text: str, tools: Sequence[Tool]) -> list[Read]:
    """`name(key="value", ...)` with literals. What has no keyword, or cannot be read, is prose
    unless it names a tool."""
    names = {tool.name for tool in tools}
    reads: list[Read] = []
    found = _FUNCTION.search(text)
    while found:
        known, end = found[1] in names, found.end()
        if known or _KEYWORD.match(text, end):
            read = _read_call(text, found)
            if known or not read.error:
                reads.append(read)
                end = read.end
        found = _FUNCTION.search(text, end)
    return reads


def read_pythonic(text: str, tools: Sequence[Tool]) -> list[Read]:
    """`[name(key="value"), ...]`, each call with its own position. A list that cannot be read is
    prose unless it names a tool."""
    names = {tool.name for tool in tools}
    reads: list[Read] = []
    found = _LIST.search(text)
    while found:
        place, inside = found.end(), []
        while call := _FUNCTION.match(text, place):
            read = _read_call(text, call)
            inside.append(read)
            place = _COMMAS.match(text, read.end).end()  # type: ignore[union-attr]
        if text.startswith("]", place) or any(read.name in names for read in inside):
            reads += [read for read in inside if not read.error or read.name in names]
        else:
            place = found.end()
        found = _LIST.search(text, place)
    return reads


def _read_call(text: str, call: re.Match[str]) -> Read:
    bracket = call.end() - 1
    try:
        end = _closing(text, bracket)
        return Read(call.start(), end, call[1], _keywords(text[bracket:end]))
    except _Unreadable as failure:
        end = text.find("\n", bracket)
        end = end if end >= 0 else len(text)
        return Read(call.start(), end, call[1], error=str(failure))


def _closing(text: str, start: int) -> int:
    """Where the bracket at `start` is closed, past strings and other brackets."""
    depth = 0
    for piece in _PIECE.finditer(text, start):
        depth += (piece[0] in "([{") - (piece[0] in ")]}")
        if depth == 0:
            return piece.end()
        if depth > _DEEPEST:
            raise _Unreadable("its brackets are nested too deeply")
    raise _Unreadable("its bracket is not closed")


def _keywords(brackets: str) -> dict[str, Any]:
    """The arguments of `(key=literal, ...)`."""
    try:
        call = ast.parse(f"f{brackets}", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _Unreadable('it is not name(key="value", ...)') from None
    if not isinstance(call, ast.Call) or call.args or any(not each.arg for each in call.keywords):
        raise _Unreadable('every argument needs its name: name(key="value", ...)')
    return dict(_literals(call.keywords))


def _literals(keywords: Sequence[ast.keyword]) -> Iterator[tuple[str, Any]]:
    for keyword in keywords:
        try:
            value = ast.literal_eval(keyword.value)
            yield str(keyword.arg), json.loads(json.dumps(value))
        except (TypeError, ValueError, MemoryError, RecursionError):
            raise _Unreadable(f"the value of {keyword.arg} is not a literal") from None
