"""Files of tools, `multi_turn.tool_config_path`.

In: a path. Out: `Tool`s. An entry is, by what is in it: a schema (`name`, `parameters`, or OpenAI's
form), a class with its `tool_schema` (`class_path`, or verl's `class_name`; its module may lie
beside the file), in a list that stands alone or under `tools:`. Raises `ToolError`, which names the
file, the entry and the field.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from _inf.config.source import written_out
from _inf.errors import ToolError, did_you_mean, shown, told, unended
from _inf.runtime.quiet import third_party
from _inf.tools.definition import check_names, checked_schema, known_keys, verl_tool
from _inf.tools.user_module import import_beside
from _inf.types import Tool

MOST_VALUES = 100_000
_CLASS_KEYS = ("class_path", "class_name", "config", "tool_schema")


def load_tools(path: str | Path) -> list[Tool]:
    """The tools of a file, in its order."""
    entries = _entries(Path(path))
    places = [f"{path}: tools[{index}]" for index in range(len(entries))]
    tools = [_tool(entry, place, path) for entry, place in zip(entries, places, strict=True)]
    check_names(tools, places)
    return tools


def _entries(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None and written_out(node, {}) > MOST_VALUES:
            raise ToolError(f"{path}: its aliases stand for over {MOST_VALUES:,} values.")
        content = yaml.safe_load(text)
    except (OSError, UnicodeError) as error:
        raise ToolError(f"{path}: it cannot be read: {unended(error)}.") from error
    except yaml.YAMLError as error:
        raise ToolError(f"{path}: it is not YAML: {error}") from None
    except ToolError:
        raise
    except Exception as error:  # PyYAML's constructors raise what they meet
        raise ToolError(f"{path}: a value does not fit its tag: {error!r}.") from None
    if isinstance(content, Mapping):
        known_keys(content, ("tools",), str(path))
        content = content["tools"] if content else None
    if not content:
        raise ToolError(f"{path}: it holds no tools; list them under tools:")
    if not isinstance(content, list):
        raise ToolError(f"{path}: tools: {shown(content)} is not a list.")
    return content


def _tool(entry: Any, place: str, file: str | Path) -> Tool:
    if not isinstance(entry, Mapping):
        raise ToolError(f"{place}: {shown(entry)} is not a mapping.")
    if "mcp" in entry or _config_type(entry) == "mcp":
        raise ToolError(
            f"{place}: MCP tools are not supported; write a Python function or a class."
        )
    if not entry.keys() & {"class_path", "class_name", "tool_schema"}:
        alone = checked_schema(entry, place)
        return Tool(alone["function"]["name"], alone)
    known_keys(entry, _CLASS_KEYS, place)
    field, dotted = _dotted(entry, place)
    cls = _class(dotted, f"{place}.{field}", file)
    schema = entry.get("tool_schema")
    if schema is not None and not isinstance(schema, Mapping):
        raise ToolError(f"{place}.tool_schema: {shown(schema)} is not a mapping.")
    checked = None if schema is None else checked_schema(schema, f"{place}.tool_schema")
    return verl_tool(_instance(cls, _config(entry, place), checked, place), place, checked)


def _config_type(entry: Mapping[str, Any]) -> Any:
    config = entry.get("config")
    return config.get("type", "native") if isinstance(config, Mapping) else "native"


def _config(entry: Mapping[str, Any], place: str) -> dict[str, Any]:
    """With `${oc.env:NAME}` resolved, as verl does."""
    config = entry.get("config") or {}
    if not isinstance(config, Mapping):
        raise ToolError(f"{place}.config: {shown(config)} is not a mapping.")
    if _config_type(entry) != "native":
        raise ToolError(f"{place}.config.type: {shown(config['type'])} is not 'native'.")
    try:
        resolved: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except Exception as failure:  # OmegaConf's, and its resolvers'
        raise ToolError(f"{place}.config: {unended(str(failure).splitlines()[0])}.") from failure
    return resolved


def _dotted(entry: Mapping[str, Any], place: str) -> tuple[str, str]:
    """The field that has the dotted path of the class, and the path."""
    for field in ("class_path", "class_name"):
        if field in entry and not isinstance(entry[field], str):
            raise ToolError(f"{place}.{field}: {shown(entry[field])} is not a string.")
    name = entry.get("class_name")
    field = "class_path" if "class_path" in entry else "class_name"
    dotted = entry.get(field)
    if dotted is None or "." not in dotted.strip("."):
        raise ToolError(
            f"{place}.{field}: {shown(dotted)} is not the dotted path of a class, such as "
            "verl.tools.gsm8k_tool.Gsm8kTool."
        )
    if name is not None and name not in (dotted, dotted.rpartition(".")[2]):
        raise ToolError(f"{place}.class_name: {name!r} is not the class of class_path, {dotted!r}.")
    return field, dotted


def _class(dotted: str, place: str, file: str | Path) -> Any:
    from verl.tools.base_tool import BaseTool

    module_name, _, name = dotted.rpartition(".")
    try:
        with third_party():
            module = import_beside(file, module_name)
    except Exception as failure:  # a module raises what it likes
        raise ToolError(f"{place}: {module_name} cannot be imported: {told(failure)}.") from failure
    found = getattr(module, name, None)
    if found is None:
        hint = did_you_mean(name, dir(module)) or "."
        raise ToolError(f"{place}: {module_name} has no class {name!r}{hint}")
    if not isinstance(found, type) or not issubclass(found, BaseTool):
        raise ToolError(f"{place}: {dotted} is not a subclass of verl.tools.base_tool.BaseTool.")
    return found


def _instance(
    cls: Any, config: dict[str, Any], schema: Mapping[str, Any] | None, place: str
) -> Any:
    from pydantic import ValidationError
    from verl.tools.schemas import OpenAIFunctionToolSchema

    try:
        theirs = None if schema is None else OpenAIFunctionToolSchema.model_validate(schema)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("tool_schema", *first["loc"])))
        raise ToolError(
            f"{place}.{field}: {unended(first['msg'])}; verl asks for it in a class's schema."
        ) from None
    try:
        with third_party(), contextlib.redirect_stdout(io.StringIO()):  # it prints its schema
            return cls(config=config, tool_schema=theirs)
    except Exception as failure:
        field = "tool_schema" if schema is None else "config"
        raise ToolError(
            f"{place}: {cls.__name__} cannot be made of this {field}: {told(failure)}."
        ) from failure
