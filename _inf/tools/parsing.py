"""Finds the tool calls in a model's text, and writes instructions for models on how to call.

A call that cannot be read is returned too, with its `error`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from _inf.config.tool_formats import ALIASES, format_fault
from _inf.errors import ToolError
from _inf.tools.readers import read_function, read_hermes, read_json, read_pythonic, read_xml
from _inf.tools.sglang_parsers import detect
from _inf.types import Tool, ToolCall

_READERS: dict[str, Callable[[str, Sequence[Tool]], list[ToolCall]]] = {
    "hermes": read_hermes,  # SGLang's parser needs newlines in the tags and drops broken JSON
    "json": read_json,
    "xml": read_xml,
    "function": read_function,
    "pythonic": read_pythonic,  # SGLang's regular expression takes minutes on twenty arguments
}


@dataclass(frozen=True)
class Parsed:
    """The calls in a text; content: the text outside them."""

    content: str
    calls: list[ToolCall]


def parse(text: str, format: str, tools: Sequence[Tool]) -> Parsed:
    """Return the calls in `text`, in order, including those of unknown tools."""
    format = ALIASES.get(format, format)
    if fault := format_fault(format):
        raise ToolError.of("format", fault)
    if format not in _READERS:
        return Parsed(*detect(text, format, tools))
    calls = _READERS[format](text, tools)
    if not calls:
        return Parsed(text, [])
    outside, end, mark = "", 0, _absent_character(text)
    for call in calls:
        outside += text[end : call.start_pos] + mark
        end = call.end_pos
    return Parsed(_unwrapped(outside + text[end:], mark), calls)


def _absent_character(text: str) -> str:
    return next(chr(code) for code in range(sys.maxunicode) if chr(code) not in text)


def _unwrapped(outside: str, mark: str) -> str:
    """Remove the marks, each in the place of a call, and lists, fences and tags that hold nothing
    but marks."""
    calls = rf"\s*(?:{re.escape(mark)}[\s,;]*)+"
    wrapped = re.compile(
        rf"```\w*{calls}```|\[{calls}\]|<function_calls>{calls}</function_calls>"
        rf"|<\|python_start\|>{calls}<\|python_end\|>"
    )
    while (shorter := wrapped.sub(lambda _: mark, outside)) != outside:
        outside = shorter
    return outside.replace(mark, "").strip()


def tool_instructions(tools: Sequence[Tool], format: str) -> str:
    """Return a system text for a chat template that does not show tools: their schemas, and how to
    write a call in Hermes' format. Empty for other formats, in which such a call is not found."""
    if ALIASES.get(format, format) != "hermes":
        return ""
    schemas = "\n".join(json.dumps(tool.schema["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools:\n{schemas}\n\nTo call the tool NAME with the argument ARG, "
        'write\n<tool_call>\n{"name": "NAME", "arguments": {"ARG": "VALUE"}}\n</tool_call>\nwith '
        "the real name, arguments and values, then stop; the result follows. When you need no "
        "tool, answer in plain text."
    )
