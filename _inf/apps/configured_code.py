"""The versions of the code that a config's files name, and of the tools of a call."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from _inf.apps.code_version import CodeVersion, depends_on, version_of
from _inf.types import Tool

CLASSES = ("class_path", "class_name")  # keys of a tools file, or of verl's file of interactions
SERVERS = "mcp_servers_config_path"
OF_PROGRAM = ("command", "args")  # of an MCP server
OF_TOOLS = "code of the tools"


def of_file(name: str, path: Path) -> CodeVersion:
    """The version of the classes and of the MCP servers' scripts that a file of tools or
    interactions names. Nothing is imported or started. A file of another form gives that of no
    code: loading it says what is wrong."""
    values = _values(path)
    servers = [Path(each) for each in named_in(values, SERVERS)]
    listed = [server.read_text(encoding="utf-8") for server in servers if server.is_file()]
    with contextlib.suppress(ValueError):
        values = [values, *map(json.loads, listed)]
    modules = [each.rpartition(".")[0] for each in named_in(values, *CLASSES) if "." in each]
    words = [Path(each) for each in named_in(values, *OF_PROGRAM)]
    scripts = [word for word in words if word.suffix == ".py" and word.is_file()]
    folder = path.resolve().parent
    code = version_of("", folder=folder, imports=modules, scripts=scripts)
    return CodeVersion.of_all(name, [code], *listed)


def of_tools(tools: Sequence[Tool]) -> dict[str, str]:
    """What answers depend on besides the schemas of a call's `tools`: the code that runs them."""
    runs = [tool.function or tool.verl for tool in tools if tool.executable]
    versions = [version_of(code) for code in runs]
    return depends_on([CodeVersion.of_all(OF_TOOLS, versions)] if versions else [])


def named_in(values: Any, *keys: str) -> Iterator[str]:
    """The texts under `keys`, in mappings and lists of any depth; also lists of texts."""
    if isinstance(values, dict):
        for key in keys:
            found = values.get(key)
            yield from map(str, found if isinstance(found, list) else [found] if found else [])
        values = list(values.values())
    for value in values if isinstance(values, list) else ():
        yield from named_in(value, *keys)


def _values(path: Path) -> Any:
    values = None
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    with contextlib.suppress(Exception):  # of OmegaConf's resolvers: the loading says it
        return OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    return values
