"""Loads files of tools, `multi_turn.tool_config_path`.

In: a path. Out: `Tool`s. The file is a list, alone or under `tools:`. An entry is a schema (`name`,
`parameters`, or OpenAI's form), or a class with its `tool_schema` (`class_path`, or verl's
`class_name`; its module may lie beside the file). Raises `ToolError`, which names the file, the
entry and the field.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict

from _inf.config.source import parse_yaml
from _inf.errors import ConfigError, ToolError, did_you_mean, shown, told, unended
from _inf.runtime.quiet import third_party
from _inf.tools.definition import check_names, checked_schema, validated, verl_tool
from _inf.tools.user_module import import_beside
from _inf.types import Tool


class _ClassEntry(BaseModel):
    """A tool that a class executes; `class_name` may be the last part of `class_path` too."""

    model_config = ConfigDict(extra="forbid", strict=True)

    class_path: str | None = None
    class_name: str | None = None
    config: dict[str, Any] | None = None
    tool_schema: dict[str, Any] | None = None


def load_tools(path: str | Path) -> list[Tool]:
    """The tools of a file, in its order."""
    try:
        content = parse_yaml(Path(path).read_text(encoding="utf-8"), str(path))
    except ConfigError as error:
        raise ToolError(str(error)) from None
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{path}: it cannot be read: {unended(error)}.") from error
    under_tools = isinstance(content, Mapping) and [*content] == ["tools"]
    entries = content["tools"] if under_tools else content
    if not isinstance(entries, list) or not entries:
        raise ToolError(f"{path}: it holds no tools; list them, alone or under the one key tools:")
    places = [f"{path}: tools[{index}]" for index in range(len(entries))]
    tools = [_tool(entry, place, path) for entry, place in zip(entries, places, strict=True)]
    check_names(tools, places)
    return tools


def _tool(entry: Any, place: str, file: str | Path) -> Tool:
    if not isinstance(entry, Mapping):
        raise ToolError(f"{place}: {shown(entry)} is not a mapping.")
    if not entry.keys() & _ClassEntry.model_fields.keys():
        alone = checked_schema(entry, place)
        return Tool(alone["function"]["name"], alone)
    fields: _ClassEntry = validated(_ClassEntry, entry, place)
    tool_class = _class(fields, place, file)
    config = _resolved_config(fields.config or {}, f"{place}.config")
    schema = fields.tool_schema
    if schema is not None:
        schema = checked_schema(schema, f"{place}.tool_schema")
    return verl_tool(_instance(tool_class, config, schema, place), place, schema)


def _class(fields: _ClassEntry, place: str, file: str | Path) -> Any:
    from verl.tools.base_tool import BaseTool

    place = f"{place}.{'class_name' if fields.class_path is None else 'class_path'}"
    dotted = fields.class_path or fields.class_name or ""
    module_name, _, name = dotted.rpartition(".")
    if not module_name:
        raise ToolError(
            f"{place}: {shown(dotted)} is not the dotted path of a class, such as "
            "verl.tools.gsm8k_tool.Gsm8kTool."
        )
    if fields.class_name not in (None, dotted, name):
        raise ToolError(f"{place}: class_name says another class, {shown(fields.class_name)}.")
    try:
        with third_party():
            module = import_beside(file, module_name)
    except Exception as failure:  # a module raises what it likes
        raise ToolError(f"{place}: {module_name} cannot be imported: {told(failure)}.") from failure
    tool_class = getattr(module, name, None)
    if not isinstance(tool_class, type) or not issubclass(tool_class, BaseTool):
        hint = did_you_mean(name, dir(module)) if tool_class is None else ""
        raise ToolError(
            f"{place}: {dotted} is not a subclass of verl.tools.base_tool.BaseTool{hint or '.'}"
        )
    return tool_class


def _resolved_config(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    """With `${oc.env:NAME}` resolved, as verl does."""
    if config.get("type", "native") != "native":
        raise ToolError(
            f"{place}.type: {shown(config['type'])} is not 'native'; instead of an MCP tool, write "
            "a Python function or a class."
        )
    try:
        resolved: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except Exception as failure:  # OmegaConf's, and its resolvers'
        raise ToolError(f"{place}: {unended(str(failure).splitlines()[0])}.") from failure
    return resolved


def _instance(
    tool_class: Any, config: dict[str, Any], schema: dict[str, Any] | None, place: str
) -> Any:
    from verl.tools.schemas import OpenAIFunctionToolSchema

    theirs = None
    if schema is not None:  # verl asks for more in a class's schema than we do
        theirs = validated(OpenAIFunctionToolSchema, schema, f"{place}.tool_schema")
    try:
        with third_party(), contextlib.redirect_stdout(io.StringIO()):  # it prints its schema
            return tool_class(config=config, tool_schema=theirs)
    except Exception as failure:
        field = "tool_schema" if schema is None else "config"
        raise ToolError(
            f"{place}: {tool_class.__name__} cannot be made of this {field}: {told(failure)}."
        ) from failure
