"""Reads tool calls that mark each argument by tags or tokens of their own: qwen3_coder, glm45,
minimax-m2, gemma4.

The chat templates of Qwen3.5, GLM-4.5 and later, MiniMax M2 and Gemma 4 write calls so. As in
`readers.py`, a call that cannot be read has an `error`, and the time is linear in the text.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from _inf.errors import shown
from _inf.tools.call_values import Unreadable, call_of, typed_values, wrong
from _inf.types import Tool, ToolCall


@dataclasses.dataclass(frozen=True)
class Tags:
    """A format. call: matches a whole call, or one that is cut where the next one begins or the
    text ends; its groups are the name, the arguments and the closing tag. value: matches an
    argument; its groups are the name and the text. form: what a call looks like."""

    call: re.Pattern[str]
    value: re.Pattern[str]
    form: str

    def read(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        calls = []
        for match in self.call.finditer(text):
            name = match[1]
            try:
                if not (match[3] and name):
                    raise Unreadable(f"it is not {self.form}")
                arguments = typed_values(self._values(match[2]), name, tools)
                calls.append(ToolCall(name, arguments, match[0], *match.span()))
            except Unreadable as failure:
                calls.append(wrong(text, *match.span(), failure, name))
        return calls

    def _values(self, inside: str) -> list[tuple[str, str]]:
        values, end = [], 0
        while match := self.value.match(inside, end):
            values.append((match[1].strip(), match[2]))
            end = match.end()
        if rest := inside[end:].strip():
            raise Unreadable(f"{shown(rest)} is no argument; a call is {self.form}")
        return values


def _tags(call: str, value: str, form: str) -> Tags:
    return Tags(re.compile(call, re.DOTALL), re.compile(value, re.DOTALL), form)


TAGGED = {
    "qwen3_coder": _tags(
        r"(?:<tool_call>\s*)?<function=([^>\s]*)>?(.*?)"
        r"(?:(</function>)(?:\s*</tool_call>)?|(?=<function=)|\Z)",
        r"\s*<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*",
        "<function=NAME><parameter=KEY>VALUE</parameter></function>",
    ),
    "glm45": _tags(
        r"<tool_call>\s*([^<\s]*)(.*?)(?:(</tool_call>)|(?=<tool_call>)|\Z)",
        r"\s*<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*",
        "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>",
    ),
    "minimax-m2": _tags(
        r'<invoke name="([^">]*)(?:">)?(.*?)(?:(</invoke>)|(?=<invoke name=)|\Z)',
        r'\s*<parameter name="([^"]+)">(.*?)</parameter>\s*',
        '<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>',
    ),
}

_GEMMA4 = re.compile(
    r"<\|tool_call>call:([^{\s]*)(.*?)(?:(<tool_call\|>)|(?=<\|tool_call>)|\Z)", re.DOTALL
)
_STRING_OR_KEY = re.compile(r'<\|"\|>(.*?)<\|"\|>|([A-Za-z_$][\w$.-]*)(?=\s*:)', re.DOTALL)


def read_gemma4(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    """Read `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`."""
    calls = []
    for match in _GEMMA4.finditer(text):
        if match[1] and match[3]:
            arguments = _STRING_OR_KEY.sub(lambda part: json.dumps(part[1] or part[2]), match[2])
            calls.append(call_of(match[1], arguments, match[0], *match.span()))
        else:
            form = "<|tool_call>call:NAME{key:VALUE}<tool_call|>"
            calls.append(wrong(text, *match.span(), f"it is not {form}", match[1]))
    return calls
