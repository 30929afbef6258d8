"""Loads the tools of a file, `multi_turn.tool_config_path` (docs/tools.md), and ends their servers.

A `ToolError` names the file, the entry and the field.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict, RootModel

from _inf.errors import ToolError, did_you_mean, error_text, shown, strip_punctuation
from _inf.runtime.extras import installed, lacks_verl, without
from _inf.runtime.quiet import stdout_to, third_party
from _inf.tools.definition import (
    as_tool,
    checked_schema,
    is_verls,
    listed_tools,
    refused,
    validated,
)
from _inf.tools.mcp_files import McpEntry, mcp_entry
from _inf.types import JSON, Tool


class _ClassEntry(BaseModel):
    """A tool that a class executes; `class_name` may also be the last part of `class_path`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    class_path: str | None = None
    class_name: str | None = None
    config: JSON | None = None
    tool_schema: JSON | None = None


def load_tools(path: str | Path) -> list[Tool]:
    """Load a file's tools; MCP servers that it names are started, until `close_tools`."""
    loaded: list[Tool] = []

    def tools_of(entry: object, where: str) -> list[Tool]:
        loaded.extend(tools := _tools(path, entry, where))
        return tools

    try:
        return listed_tools(_entries(Path(path)), f"{path}: tools", tools_of)
    except BaseException:
        close_tools(loaded)
        raise


def close_tools(tools: Sequence[Tool]) -> None:
    """End the MCP servers of tools; a call of one that follows starts its server again."""
    functions: list[object] = [tool.function for tool in tools]
    for server in {each.server for each in functions if hasattr(each, "server")}:
        server.close()


def _entries(path: Path) -> list[object]:
    with refused(f"{path}: it cannot be read as YAML"):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    under_tools = isinstance(content, Mapping) and [*content] == ["tools"]
    entries = content["tools"] if under_tools else content
    if not isinstance(entries, list) or not entries:
        raise ToolError(f"{path}: it has no tools; list them, alone or under the one key tools:")
    return entries


def _tools(file: str | Path, entry: object, where: str) -> list[Tool]:
    if not isinstance(entry, Mapping):
        raise ToolError(f"{where}: {shown(entry)} is not a mapping.")
    if entry.get("type") == "mcp":
        return _of_server(mcp_entry(_resolved(entry, where), where), where)
    if "mcp" in entry:
        raise ToolError(
            f"{where}: verl's form of MCP servers is not read; write an entry with type: mcp and "
            "command or url for each server."
        )
    if not entry.keys() & _ClassEntry.model_fields.keys():
        return [as_tool(entry, where)]
    return [_of_class(file, entry, where)]


def _of_server(entry: McpEntry, where: str) -> list[Tool]:
    try:
        from _inf.tools.mcp_server import mcp_tools
    except ImportError as failure:
        why = f"MCP tools need version 2 of the package mcp ({strip_punctuation(failure)})"
        raise ToolError(f"{where}: {without('mcp', why)}.") from failure
    return mcp_tools(entry, where)


def _of_class(file: str | Path, entry: Mapping[str, object], where: str) -> Tool:
    fields = validated(_ClassEntry, entry, where)
    schema = verl_schema = None
    if fields.tool_schema is not None:
        schema = checked_schema(fields.tool_schema, f"{where}.tool_schema")
        verl_schema = _verls_schema(schema, f"{where}.tool_schema")
    tool_class = _class(fields, where, file)
    config = _resolved(fields.config or {}, f"{where}.config")
    if (kind := config.get("type", "native")) != "native":
        raise ToolError(f"{where}.config.type: {shown(kind)} is not 'native'.")
    field = "tool_schema" if schema is None else "config"
    with refused(f"{where}: {tool_class.__name__} cannot be created with this {field}"):
        with third_party(), stdout_to(io.StringIO()):  # verl prints the schema
            tool = tool_class(config=config, tool_schema=verl_schema)
    if schema is None:
        return as_tool(tool, where)
    return Tool(schema["function"]["name"], schema, verl=tool)


def _verls_schema(schema: JSON, where: str) -> object:
    """verl's object, which requires more fields than we do; without verl, one with the same
    `model_dump`."""
    if not installed("verl"):
        return RootModel[JSON](schema)
    from verl.tools.schemas import OpenAIFunctionToolSchema

    return validated(OpenAIFunctionToolSchema, schema, where)


def _class(fields: _ClassEntry, where: str, file: str | Path) -> Any:
    where = f"{where}.{'class_name' if fields.class_path is None else 'class_path'}"
    dotted = fields.class_path or fields.class_name or ""
    module_name, _, name = dotted.rpartition(".")
    if not module_name:
        raise ToolError(
            f"{where}: {shown(dotted)} is not the dotted path of a class, such as "
            "verl.tools.gsm8k_tool.Gsm8kTool."
        )
    if fields.class_name not in (None, dotted, name):
        raise ToolError(f"{where}: class_name is another class, {shown(fields.class_name)}.")
    try:
        with third_party():
            module = import_beside(file, module_name)
    except Exception as failure:
        why = lacks_verl(failure, "rollout.multi_turn.tool_config_path") or error_text(failure)
        raise ToolError(f"{where}: {module_name} cannot be imported: {why}.") from failure
    tool_class = getattr(module, name, None)
    if not isinstance(tool_class, type) or not is_verls(tool_class):
        hint = did_you_mean(name, dir(module)) if tool_class is None else ""
        raise ToolError(
            f"{where}: {dotted} is not a subclass of verl.tools.base_tool.BaseTool{hint or '.'}"
        )
    return tool_class


def _resolved(config: Mapping[str, object], where: str) -> JSON:
    """Resolve `${oc.env:NAME}`, as verl does."""
    try:
        resolved: JSON = OmegaConf.to_container(OmegaConf.create(config), resolve=True)
    except Exception as failure:  # of OmegaConf or its resolvers
        raise ToolError(
            f"{where}: {strip_punctuation(error_text(failure).splitlines()[0])}."
        ) from failure
    return resolved


def import_beside(file: str | Path, name: str) -> ModuleType:
    """Import the module `name`, which `file` names; it is searched on Python's path, and last in
    the file's folder.

    Raises what its import raises, and `ImportError` if the folder has the module but another one
    of that name is found first or already imported.
    """
    folder = Path(file).resolve().parent
    searched = str(folder) in sys.path
    if not searched:
        sys.path.append(str(folder))
    try:
        if name.partition(".")[0] != "_inf":  # always our own package
            _refuse_hidden(folder.joinpath(*name.split(".")), name)
        return importlib.import_module(name)
    finally:
        if not searched:
            with contextlib.suppress(ValueError):  # the module has removed it
                sys.path.remove(str(folder))


def _refuse_hidden(beside: Path, name: str) -> None:
    """Refuse a module at `beside` if importing `name` would find another module."""
    for file in (beside / "__init__.py", beside.with_name(f"{beside.name}.py")):
        if file.is_file():
            spec = importlib.util.find_spec(name)
            if spec and spec.origin and Path(spec.origin).resolve() != file.resolve():
                raise ImportError(
                    f"{file} is hidden by {spec.origin}, which has the same name and is found "
                    "first; rename one of them"
                )
            return
