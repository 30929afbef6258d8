"""OpenAI's `tool_choice` and `strict`: the grammar that makes an answer a call of a tool, the calls
in an answer that it made, and which calls of a free answer count."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from _inf.apps.openai_requests import NamedTool
from _inf.errors import ConfigError, shown
from _inf.parts.grammars import Grammar
from _inf.parts.grammars.schemas import embedded
from _inf.request.keywords import KEYWORDS
from _inf.runtime import quiet
from _inf.tools.json_schemas import argument_fault
from _inf.types import JSON, Tool, ToolCall

# The beginning of a forced call, and what there is of its arguments.
_BEGUN = re.compile(r'\{\s*"name":\s*("(?:[^"\\]|\\.)*"),\s*"arguments":\s*(.*)', re.DOTALL)


def forces(choice: str | NamedTool | None) -> bool:
    return choice not in (None, "auto", "none")


def takes(tools: Mapping[str, Tool], call: ToolCall) -> bool:
    """Whether a call in an answer is of one of the tools, with arguments as its schema says if that
    is `strict`."""
    tool = tools.get(call.name)
    if tool is None or not _is_strict(tool):
        return tool is not None
    return call.error is None and argument_fault(tool, call.arguments) is None


def _is_strict(tool: Tool) -> bool:
    return tool.schema["function"].get("strict") is True


def check_strict(tools: Mapping[str, Tool]) -> None:
    """Refuse strict tools with schemas that answers cannot be held to."""
    for index, tool in enumerate(tools.values()):
        if _is_strict(tool):
            where = f"tools[{index}].function.parameters"
            parameters = _parameters(tool, where)
            if '"patternProperties"' in json.dumps(parameters):
                reason = "a strict tool cannot have patternProperties; leave out strict"
                raise ConfigError.of(where, reason)


def _parameters(tool: Tool, where: str) -> JSON:
    """The schema of the tool's arguments, which a grammar can enforce. `strict` may stand in it by
    mistake: a grammar always is."""
    parameters = {"type": "object", **tool.parameters}
    if isinstance(parameters.get("strict"), bool):
        del parameters["strict"]
    try:
        with quiet.no_warnings("json_schema"):  # the whole schema of a call has its own
            KEYWORDS["json_schema"].checked("json_schema", parameters)
    except ConfigError as failure:
        reason = str(failure).removeprefix("json_schema")
        raise ConfigError(f"{where}{reason}", key=where) from None
    return parameters


def call_schema(
    choice: str | NamedTool | None,
    tools: Mapping[str, Tool],
    keywords: Mapping[str, object],
    *,
    several: bool,
) -> JSON:
    """Return the schema of `{"name": ..., "arguments": {...}}` for the tools that may be called;
    several: of a list of them. It replaces a schema in `keywords`, which is that of an answer
    without a call."""
    for name in {*Grammar.keywords} - {"json_schema"}:
        if name in keywords:
            reason = f"an answer can follow one grammar only; remove {name}"
            raise ConfigError.of("tool_choice", reason)
    named = choice.function.name if isinstance(choice, NamedTool) else None
    if named is not None and named not in tools:
        raise ConfigError.of("tool_choice", f"there is no tool {shown(named)} in tools")
    if not tools:
        raise ConfigError.of("tool_choice", "it needs tools")
    callable_ = [
        (tool, _parameters(tool, f"tools[{index}].function.parameters"))
        for index, tool in enumerate(tools.values())
        if named in (None, tool.name)
    ]
    place = "/items" if several else ""
    calls = []
    for index, (tool, parameters) in enumerate(callable_):
        here = f"{place}/anyOf/{index}" if len(callable_) > 1 else place
        arguments = embedded(parameters, f"{here}/properties/arguments")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: JSON = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "array", "items": schema, "minItems": 1} if several else schema


def forced_calls(text: str) -> list[ToolCall]:
    """The calls of a whole answer that a grammar made; none if a limit or a stop string cut it."""
    try:
        value = json.loads(text)
        calls = value if isinstance(value, list) else [value]
        texts = [json.dumps(call, ensure_ascii=False) for call in calls]
        return [
            ToolCall(call["name"], call["arguments"], raw, 0, len(raw))
            for call, raw in zip(calls, texts, strict=True)
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def cut_calls(text: str) -> list[ToolCall]:
    """The calls of an answer that a grammar made and a limit or a stop string cut, as OpenAI's
    server gives them: the last one's arguments are as far as they came."""
    calls: list[ToolCall] = []
    start, decoder = text.find("{"), json.JSONDecoder()
    while start >= 0:
        try:
            call, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            begun = _BEGUN.match(text, start)
            last = begun and ToolCall(json.loads(begun[1]), {}, begun[2], start, len(text), "cut")
            return [*calls, last] if last else calls
        calls.append(ToolCall(call["name"], call["arguments"], text[start:end], start, end))
        start = text.find("{", end)
    return calls
