"""Tools: what `tools=` takes, whether a call of one is right, and its execution.

In: schemas, verl tools and Python functions. Out: `Tool`s; a sentence about a wrong call that a
model can act on; an `Executed` for a call, whatever the tool does. Knows nothing of how a model
writes a call, and nothing of rollouts.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from _inf.errors import ToolError, did_you_mean, shown, told, unended
from _inf.types import Tool, ToolCall

MOST_FAULTS = 3
MOST_FAULT_CHARACTERS = 300


def as_tools(given: Any) -> list[Tool]:
    """`tools=` of a call: a list of schemas, verl tools, Python functions and `Tool`s.

    Raises `ToolError`, which names the index and the field.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise ToolError(f"tools: {shown(given)} is not a list of schemas, functions or verl tools.")
    tools = [_as_tool(item, f"tools[{index}]") for index, item in enumerate(given)]
    check_names(tools, [f"tools[{index}]" for index in range(len(tools))])
    return tools


def check_names(tools: Sequence[Tool], places: Sequence[str]) -> None:
    """Refuse a name that two tools have."""
    first: dict[str, str] = {}
    for tool, place in zip(tools, places, strict=True):
        if tool.name in first:
            raise ToolError(f"{place}: the name {tool.name!r} is taken by {first[tool.name]}.")
        first[tool.name] = place


def _as_tool(item: Any, place: str) -> Tool:
    if isinstance(item, Tool):
        return item
    if isinstance(item, Mapping):
        schema = checked_schema(item, place)
        return Tool(schema["function"]["name"], schema)
    if is_verl_tool(item):
        return verl_tool(item, place)
    if callable(item) and not isinstance(item, type):
        return _function_tool(item, place)
    raise ToolError(f"{place}: {shown(item)} is no schema, function or verl tool.")


def is_verl_tool(item: Any) -> bool:
    """Without importing verl: where nobody has, nothing is one."""
    base = sys.modules.get("verl.tools.base_tool")
    return base is not None and isinstance(item, base.BaseTool)


def verl_tool(tool: Any, place: str, schema: Mapping[str, Any] | None = None) -> Tool:
    """A verl tool under `schema`, or under the one that it tells of itself."""
    if schema is None:
        try:
            schema = tool.get_openai_tool_schema().model_dump(exclude_unset=True, exclude_none=True)
        except Exception as failure:
            name = type(tool).__name__
            raise ToolError(
                f"{place}: {name}.get_openai_tool_schema() failed: {told(failure)}."
            ) from failure
    checked = checked_schema(schema or {}, place)
    return Tool(checked["function"]["name"], checked, verl=tool)


def _function_tool(function: Callable[..., Any], place: str) -> Tool:
    from transformers.utils import get_json_schema

    name = getattr(function, "__name__", type(function).__name__)
    try:
        schema = get_json_schema(function)
    except Exception as failure:  # it raises what its parsing of hints and docstring meets
        raise ToolError(
            f"{place}: no schema can be made of the function {name!r}: {told(failure)}. Give it a "
            "docstring whose Args section describes each parameter, and each parameter a type hint."
        ) from failure
    return Tool(name, checked_schema(schema, place), function=function)


# ─── Schemas ───

_SHELL = ("type", "function")
_FUNCTION = ("name", "description", "parameters", "strict", "return")  # get_json_schema's "return"


def checked_schema(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    """OpenAI's form, with its shell, of a schema with or without; a copy."""
    path, function = place, given
    if "function" in given:
        known_keys(given, _SHELL, place)
        if given.get("type", "function") != "function":
            raise ToolError(f"{place}.type: {shown(given['type'])} is not 'function'.")
        path, function = f"{place}.function", given["function"]
        if not isinstance(function, Mapping):
            raise ToolError(f"{path}: {shown(function)} is not a mapping.")
    else:
        function = {**given}
        if function.get("type") == "function":
            del function["type"]
    known_keys(function, _FUNCTION, path)
    name, description = function.get("name"), function.get("description", "")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise ToolError(
            f"{path}.name: {shown(name)} is not a name of letters, digits, _ - and '.'."
        )
    if not isinstance(description, str):
        raise ToolError(f"{path}.description: {shown(description)} is not a string.")
    parameters = _checked_parameters(function.get("parameters"), f"{path}.parameters")
    rest = {
        key: _json(function[key], f"{path}.{key}")
        for key in ("strict", "return")
        if key in function
    }
    whole = {"name": name, "description": description, "parameters": parameters, **rest}
    return {"type": "function", "function": whole}


def known_keys(given: Mapping[str, Any], known: Sequence[str], place: str) -> None:
    for key in given:
        if key not in known:
            name = key if isinstance(key, str) else shown(key)
            raise ToolError(
                f"{place}.{name}: no such field{did_you_mean(name, known) or '.'} "
                f"The fields are {', '.join(known)}."
            )


def _checked_parameters(given: Any, path: str) -> dict[str, Any]:
    from jsonschema import Draft202012Validator, SchemaError

    if given is None:
        return {"type": "object", "properties": {}}
    if not isinstance(given, Mapping) or given.get("type") != "object":
        raise ToolError(
            f"{path}: {shown(given)} is not the JSON schema of an object; write "
            '{"type": "object", "properties": {"query": {"type": "string"}}, "required": '
            '["query"]}.'
        )
    parameters: dict[str, Any] = _json(given, path)
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ToolError(
            f"{'.'.join([path, *map(str, error.path)])}: {unended(error.message)}."
        ) from None
    except RecursionError:
        raise ToolError(f"{path}: it is nested too deeply.") from None
    return parameters


def _json(value: Any, path: str) -> Any:
    """A copy of plain types."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"{path}: it is not JSON: {unended(error)}.") from None


# ─── Calls ───


def argument_fault(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """What in `arguments` breaks the tool's schema, for the model to mend; None if nothing."""
    from referencing import Registry

    # An empty registry: a "$ref" elsewhere is an error, and not a download.
    validator = _validator_class()(tool.parameters, registry=Registry())
    try:
        errors = sorted(validator.iter_errors(dict(arguments)), key=lambda error: error.json_path)
    except Exception as failure:
        return f"the schema of {tool.name} cannot be applied: {failure}"
    faults = []
    for error in errors[:MOST_FAULTS]:
        path = "".join(f"{each}: " for each in [".".join(map(str, error.absolute_path))] if each)
        faults.append(f"{path}{error.message}"[:MOST_FAULT_CHARACTERS])
    return "; ".join(faults) or None


def _validator_class() -> Any:
    """JSON Schema, and `nullable`: how Transformers writes `int | None`."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    plain = Draft202012Validator.VALIDATORS["type"]

    def type_or_null(validator: Any, types: Any, instance: Any, schema: Any) -> Any:
        if instance is None and schema.get("nullable") is True:
            return ()
        return plain(validator, types, instance, schema)

    return extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {"type": type_or_null}
    )


def wrong_call_text(call: ToolCall, tools: Sequence[Tool], fault: str | None) -> str:
    """What the model is told of a call that is not executed: one that could not be read
    (`call.error`), one of no tool, or one whose arguments have a `fault`."""
    if call.error is not None:
        return f"Error: the tool call could not be read: {unended(call.error)}."
    if call.name not in {tool.name for tool in tools}:
        names = ", ".join(tool.name for tool in tools) or "none"
        return f"Error: there is no tool {shown(call.name)}; the tools are: {names}."
    return f"Error: the arguments of {call.name} are wrong: {unended(fault)}."
