"""What a model wrote, read for tool calls.

In: a text, a format's name, the tools of the call. Out: `Parsed`; a call that cannot be read
comes back too, with its `error`, and nothing here raises for what a model wrote. Four formats are
read here (`_inf.tools.readers`), with exact positions; the others by SGLang's parsers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from _inf.config.tool_formats import ALIASES, FORMS, check_format
from _inf.errors import shown
from _inf.tools.readers import Read, read_function, read_hermes, read_json, read_pythonic, read_xml
from _inf.tools.sglang_parsers import detect
from _inf.types import Tool, ToolCall

_READERS: dict[str, Callable[[str, Sequence[Tool]], list[Read]]] = {
    "hermes": read_hermes,
    "qwen": read_hermes,  # SGLang's wants newlines inside the tags, and drops broken JSON
    "qwen25": read_hermes,
    "json": read_json,
    "xml": read_xml,
    "function": read_function,
    "pythonic": read_pythonic,  # SGLang's regular expression takes minutes on twenty arguments
}


@dataclass(frozen=True)
class Parsed:
    """content: the text outside the calls."""

    content: str
    calls: list[ToolCall]


def parse(text: str, format: str, tools: Sequence[Tool]) -> Parsed:
    """The calls in `text`, those of unknown tools included, in order."""
    format = ALIASES.get(format, format)
    if format not in _READERS:
        return _detected(text, check_format(format), tools)
    calls, outside, last = [], "", 0
    for read in _READERS[format](text, tools):
        arguments = {} if read.error else read.arguments
        raw = text[read.start : read.end]
        calls.append(ToolCall(read.name, arguments, raw, read.start, read.end, read.error))
        outside += text[last : max(last, read.start)] + _CALL
        last = read.end
    return Parsed(_unwrapped(outside + text[last:]) if calls else text, calls)


_CALL = "\0"  # in the place of a call
_CALLS = rf"\s*(?:{_CALL}[\s,;]*)+"
_WRAPPED = re.compile(
    rf"```\w*{_CALLS}```|\[{_CALLS}\]|<function_calls>{_CALLS}</function_calls>"
    rf"|<\|python_start\|>{_CALLS}<\|python_end\|>"
)


def _unwrapped(outside: str) -> str:
    """Without what held nothing but calls: a list, a fence, a tag around them."""
    changed = 1
    while changed:
        outside, changed = _WRAPPED.subn(_CALL, outside)
    return outside.replace(_CALL, "").strip()


def _detected(text: str, format: str, tools: Sequence[Tool]) -> Parsed:
    found = detect(text, format, [tool.schema for tool in tools])
    calls = []
    for name, written in found.calls:
        arguments, error = _decoded(written)
        calls.append(ToolCall(name, arguments, text, 0, len(text), error))
    if found.failure is not None:
        calls.append(ToolCall("", {}, text, 0, len(text), found.failure))
    return Parsed(found.content if calls else text, calls)


def _decoded(written: str) -> tuple[dict[str, Any], str | None]:
    try:
        arguments = json.loads(written or "{}")
        if isinstance(arguments, str):  # JSON in JSON
            arguments = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not JSON: {error}"
    if arguments is None:
        return {}, None
    if not isinstance(arguments, dict):
        return {}, f"the arguments are {shown(arguments)}, not an object"
    return arguments, None


def tool_instructions(tools: Sequence[Tool], format: str) -> str:
    """A system text that tells the tools and how a call is written, for a chat template that has
    no place for them."""
    form = FORMS[ALIASES.get(format, format)].replace("ARGUMENTS", '{"ARG": "VALUE"}')
    schemas = "\n".join(json.dumps(tool.schema["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You can call these tools:\n{schemas}\n\nTo call the tool NAME with the argument ARG, "
        f"write\n{form}\nwith the real name, arguments and values, then stop; the result follows. "
        "When you need no tool, answer in plain text."
    )
