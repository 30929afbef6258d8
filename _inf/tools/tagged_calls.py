"""Reads tool calls that mark each argument by tags or tokens of their own: xml, qwen3_coder, mimo,
glm45, minimax-m2, step3, deepseekv32, gemma4.

The chat templates of Qwen3.5, MiMo, GLM-4.5 and later, MiniMax M2, Step 3, DeepSeek V3.2 and Gemma
4 write calls so. As in `readers.py`, a call that cannot be read has an `error`, and the time is
linear in the text.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence, Set
from html import unescape

from _inf.errors import shown
from _inf.tools.call_values import (
    Unreadable,
    bounded,
    call_of,
    json_or_text,
    typed_values,
    wrong,
)
from _inf.types import JSON, Tool, ToolCall


@dataclasses.dataclass(frozen=True)
class Tags:
    """A format. call: matches a whole call, or one that is cut where the next one begins or the
    text ends; its groups are the name, the arguments and the closing tag. begins and ends: match
    what stands around an argument's text; the group of `begins` is its name, and so is NAME in
    `ends`. form: what a call looks like. plain: what a value is of its text."""

    call: str
    begins: str
    ends: str
    form: str
    plain: Callable[[str], str] = str

    def read(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        calls = []
        for match in re.finditer(self.call, text, re.DOTALL):
            name = match[1] or ""
            try:
                if not (match[3] and name):
                    raise Unreadable(f"it is not {self.form}")
                arguments = self._arguments(match[2], name, tools)
                calls.append(ToolCall(name, arguments, match[0], *match.span()))
            except Unreadable as failure:
                calls.append(wrong(text, *match.span(), failure, name))
        return calls

    def _arguments(self, inside: str, name: str, tools: Sequence[Tool]) -> JSON:
        values = self._values(inside, name, tools)
        texts = [(begin[1].strip(), self.plain(text)) for begin, text in values]
        return typed_values(texts, name, tools)

    def _ends(self, name: str) -> re.Pattern[str]:
        return re.compile(self.ends.replace("NAME", re.escape(name)))

    def _values(
        self, inside: str, name: str, tools: Sequence[Tool]
    ) -> list[tuple[re.Match[str], str]]:
        """Return what begins each argument, and its text. One that is not closed ends where the
        next of the tool's arguments begins; a tag in its text whose argument begins later is
        text."""
        known = next((_names(tool) for tool in tools if tool.name == name), set())
        begins = re.compile(self.begins)
        last = {begin[1].strip(): begin.start() for begin in begins.finditer(inside)}
        values, place = [], len(inside) - len(inside.lstrip())
        while (begin := begins.match(inside, place)) and (
            end := self._ends(begin[1]).search(inside, begin.end())
        ):
            stop, place = end.start(), end.end()
            text = inside[begin.end() : stop]
            known = known - {begin[1].strip()}
            for other in begins.finditer(inside, begin.end(), stop):
                if other[1].strip() in known and last[other[1].strip()] < stop:
                    text, place = inside[begin.end() : other.start()].rstrip(), other.start()
                    break
            values.append((begin, text))
        if left := inside[place:].strip():
            raise Unreadable(f"{shown(left)} is no argument; a call is {self.form}")
        return values


class TagsWithTypes(Tags):
    """A format in which each argument says whether it is text; the group 2 of `begins` is then
    "true". One JSON object may stand for all arguments."""

    def _arguments(self, inside: str, name: str, tools: Sequence[Tool]) -> JSON:
        arguments = json_or_text(inside)
        if not isinstance(arguments, dict):
            arguments = {
                begin[1].strip(): text if begin[2] == "true" else json_or_text(text)
                for begin, text in self._values(inside, name, tools)
            }
        return bounded(arguments)


def _names(tool: Tool) -> Set[str]:
    properties = tool.parameters.get("properties")
    return properties.keys() if isinstance(properties, Mapping) else set()


_QWEN3_CODER = (
    r"(?:<tool_call>\s*)?<function=([^>\s]*)>?(.*?)"
    r"(?:(</function>)(?:\s*</tool_call>)?|(?=<function=)|\Z)"
)
TAGGED: dict[str, Tags] = {
    "xml": Tags(
        r"<invoke>\s*(?:<tool_name>\s*([^<\s]+)\s*</tool_name>)?\s*(?:<parameters>)?(.*?)"
        r"(?:</parameters>\s*)?(?:(</invoke>)|(?=<invoke>)|\Z)",
        r"<([^<>/\s]+)>",
        r"</NAME>\s*",
        "<invoke><tool_name>NAME</tool_name><parameters><KEY>VALUE</KEY></parameters></invoke>",
        unescape,
    ),
    "qwen3_coder": Tags(
        _QWEN3_CODER,
        r"<parameter=([^<>\n]+)>\n?",
        r"\n?</parameter>\s*",
        "<function=NAME><parameter=KEY>VALUE</parameter></function>",
    ),
    "mimo": Tags(
        _QWEN3_CODER,
        r"<parameter=([^<>\n]+)>",
        r"</parameter>\s*",
        "<function=NAME><parameter=KEY>VALUE</parameter></function>",
        unescape,
    ),
    "glm45": Tags(
        r"<tool_call>\s*([^<\s]*)(.*?)(?:(</tool_call>)|(?=<tool_call>)|\Z)",
        r"<arg_key>([^<]+)</arg_key>\s*<arg_value>",
        r"</arg_value>\s*",
        "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>",
    ),
    "minimax-m2": Tags(
        r'<invoke name="([^">]*)(?:">)?(.*?)(?:(</invoke>)|(?=<invoke name=)|\Z)',
        r'<parameter name="([^"<>]+)">',
        r"</parameter>\s*",
        '<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>',
    ),
    "deepseekv32": TagsWithTypes(
        r'<｜DSML｜invoke\s+name="([^">]*)(?:"\s*>)?(.*?)'
        r"(?:(</｜DSML｜invoke>)|(?=<｜DSML｜invoke\s)|\Z)",
        r'<｜DSML｜parameter\s+name="([^"<>]+)"\s+string="(true|false)"\s*>',
        r"</｜DSML｜parameter>\s*",
        '<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE'
        "</｜DSML｜parameter></｜DSML｜invoke>",
    ),
    "step3": Tags(
        r"(?:<｜tool_call_begin｜>\s*function\s*<｜tool_sep｜>\s*)?"
        r'<steptml:invoke name="([^">]*)(?:">)?(.*?)'
        r"(?:(</steptml:invoke>)(?:\s*<｜tool_call_end｜>)?|(?=<steptml:invoke name=)|\Z)",
        r'<steptml:parameter name="([^"<>]+)">',
        r"</steptml:parameter>\s*",
        '<steptml:invoke name="NAME"><steptml:parameter name="KEY">VALUE</steptml:parameter>'
        "</steptml:invoke>",
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
            arguments = _STRING_OR_KEY.sub(
                lambda part: json.dumps(part[1] if part[2] is None else part[2]), match[2]
            )
            calls.append(call_of(match[1], arguments, match[0], *match.span()))
        else:
            form = "<|tool_call>call:NAME{key:VALUE}<tool_call|>"
            calls.append(wrong(text, *match.span(), f"it is not {form}", match[1]))
    return calls
