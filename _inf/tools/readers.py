"""Reads tool calls with exact positions in four formats: hermes, json, function, pythonic.

A call that cannot be read has an `error`. No reader raises, and their time is linear in the text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from _inf.errors import shown
from _inf.tools.call_values import DEEPEST, Unreadable, call_of, wrong
from _inf.tools.tagged_calls import TAGGED, read_gemma4
from _inf.types import JSON, Tool, ToolCall

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
        return wrong(text, start, end, f"{shown(value)} is not an object")
    name = value.get(name_key, value.get("name"))
    if not isinstance(name, str) or not name:
        return wrong(text, start, end, f'it has no "{name_key}"')
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
            calls.append(wrong(text, start, end, failure))
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
                calls.append(wrong(text, start, end, failure))
    return calls


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.search(text, start)
    return match.end() if match else len(text)


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
        return wrong(text, start, end if end >= 0 else len(text), failure, match[1])


def _closing(text: str, start: int) -> int:
    """Find the end of the bracket at `start`, past strings and other brackets."""
    depth = 0
    for piece in _STRING_OR_BRACKET.finditer(text, start):
        depth += (piece[0] in "([{") - (piece[0] in ")]}")
        if depth == 0:
            return piece.end()
        if depth > DEEPEST:
            raise Unreadable("its brackets are nested too deeply")
    raise Unreadable("its bracket is not closed")


class _JsonNames(ast.NodeTransformer):
    """Replaces JSON's true, false and null, which the templates of OLMo 3 and LFM2 write too."""

    VALUES = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.VALUES[node.id]) if node.id in self.VALUES else node


def _literals(brackets: str) -> JSON:
    try:
        call = _JsonNames().visit(ast.parse(f"f{brackets}", mode="eval").body)
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
    "function": read_function,
    "pythonic": read_pythonic,  # SGLang's regular expression takes minutes on twenty arguments
    "gemma4": read_gemma4,
    **{name: tags.read for name, tags in TAGGED.items()},
}
