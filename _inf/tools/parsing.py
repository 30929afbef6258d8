"""Finds the tool calls in a model's text, and writes instructions for models on how to call.

A call that cannot be read is returned too, with its `error`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from _inf.config.tool_formats import ALIASES, SGLANG, format_fault
from _inf.errors import ToolError, error_text
from _inf.types import Tool, ToolCall


@dataclass(frozen=True)
class Parsed:
    """The calls in a text; content: the text outside them. reasoning: the thought before both."""

    content: str
    calls: list[ToolCall]
    reasoning: str = ""


def parse(text: str, format: str, tools: Sequence[Tool]) -> Parsed:
    """Return the calls in `text`, in order, including those of unknown tools."""
    format = ALIASES.get(format, format)
    if fault := format_fault(format):
        raise ToolError.of("format", fault)
    from _inf.tools.readers import READERS  # by an answer to a call with tools

    if format not in READERS:
        return Parsed(*_detected(text, format, tools))
    calls = READERS[format](text, tools)
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
        rf"|<\|tool_call_start\|>{calls}<\|tool_call_end\|>"
        rf"|<(?P<tag>tool_calls|minimax:tool_call)>{calls}</(?P=tag)>"
        rf"|<｜DSML｜function_calls>{calls}</｜DSML｜function_calls>"
        rf"|<｜tool_calls_begin｜>{calls}<｜tool_calls_end｜>"
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


class _AnyName(dict[str, int]):
    """Replaces SGLang's indices of the known tools; contains every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return -1


def _detected(text: str, name: str, tools: Sequence[Tool]) -> tuple[str, list[ToolCall]]:
    """Return the text outside the calls, and the calls, whose positions are those of the whole
    text; if SGLang's parser `name` lost calls, one call with an error is added.

    Corrects sglang 0.5.9, `srt/function_call/`: a call of an unknown tool is dropped unless an
    environment variable is set, and a call that cannot be read is dropped, sometimes with all
    others, and only logged.
    """
    from sglang.srt.entrypoints.openai.protocol import Tool as SGLangTool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    from _inf.tools.call_values import call_of

    whole = text.strip()
    if name == "gpt-oss":
        whole = _whole_harmony(whole)
    detector = FunctionCallParser.ToolCallParserEnum[name]()
    detector._get_tool_indices = lambda tools: _AnyName()
    if SGLANG[name] not in whole and not detector.has_tool_call(whole):
        return text, []
    begun = whole.count(SGLANG[name])
    if name == "llama3" and whole.startswith("{"):
        begun = int('"name"' in whole)  # otherwise the answer is plain JSON
    try:
        schemas = [SGLangTool.model_validate(tool.schema) for tool in tools]
        parsed = detector.detect_and_parse(whole, schemas)
    except Exception as failure:  # a model's text may make the parser raise anything
        return "", [ToolCall("", {}, text, 0, len(text), error_text(failure))]
    calls = [
        call_of((item.name or "").strip(), item.parameters or "{}", text, 0, len(text))
        for item in parsed.calls
    ]
    if (lost := begun - len(calls)) > 0:
        error = f"{lost} of {begun} calls not in the format {name}"
        calls.append(ToolCall("", {}, text, 0, len(text), error))
    if not calls:
        return text, []
    if parsed.normal_text == whole:  # the calls with it
        return whole.partition(SGLANG[name])[0] if name == "gigachat3" else "", calls
    return parsed.normal_text or "", calls


def _whole_harmony(text: str) -> str:
    """Add the generation prompt's beginning, and a missing end token after a call."""
    text = f"<|start|>assistant{text}" if text.startswith("<|channel|>") else text
    last = text.rpartition("<|start|>")[2]
    return f"{text}<|call|>" if "to=functions." in last and "<|call|>" not in last else text
