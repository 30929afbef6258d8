"""The versions of the code that a run's answers depend on: of the files of a config, of a call's
tools, of agent loops and their entries."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from _inf.apps.code_version import CodeVersion, depends_on, version_of
from _inf.backends.registry import describe
from _inf.config import Config
from _inf.conversation.agent_loops.loading import DEFAULT_KEY, TARGET, AgentLoop, KnownLoops
from _inf.errors import ConfigError, error_text
from _inf.types import Tool

CLASSES = ("class_path", "class_name")  # keys of a tools file, or of verl's file of interactions
SERVERS = "mcp_servers_config_path"
OF_PROGRAM = ("command", "args")  # of an MCP server
OF_TOOLS = "code of the tools"
LOOP = "agent loop "  # before a name, in what scored a row and what a file was begun with


def of_file(name: str, path: Path) -> CodeVersion:
    """The version of the classes and of the MCP servers' scripts that a file of tools or
    interactions names. Nothing is imported or started. A file of another form names no code:
    loading it says what is wrong."""
    values = _values(path)
    servers = [Path(name) for name in named_in(values, SERVERS)]
    listed = [server.read_text(encoding="utf-8") for server in servers if server.is_file()]
    with contextlib.suppress(ValueError):
        values = [values, *map(json.loads, listed)]
    modules = [name.rpartition(".")[0] for name in named_in(values, *CLASSES) if "." in name]
    words = [Path(word) for word in named_in(values, *OF_PROGRAM)]
    scripts = [word for word in words if word.suffix == ".py" and word.is_file()]
    folder = path.resolve().parent
    code = version_of("", folder=folder, imports=modules, scripts=scripts)
    return CodeVersion.of_all(name, [code], *listed)


def of_tools(tools: Sequence[Tool]) -> dict[str, str]:
    """The code that runs a call's `tools`: answers depend on it as they do on the schemas."""
    runs = [tool.function or tool.verl for tool in tools if tool.executable]
    versions = [version_of(code) for code in runs]
    return depends_on([CodeVersion.of_all(OF_TOOLS, versions)] if versions else [])


def loop_versions(
    config: Config, asked: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, CodeVersion]]:
    """Find agent loops; the import of verl's takes seconds.

    asked: the loops as they were asked for, each by what asks for it, which begins the message of
    a `ConfigError` about it. Returns their names, by the same keys, and by name their versions.
    """
    names: dict[str, str] = {}
    versions: dict[str, CodeVersion] = {}
    if not asked:
        return names, versions
    describe(config).prepare(config)
    known = KnownLoops(config)
    for key, asked_for in asked.items():
        loop = known.find(asked_for, key)
        names[key], version = loop.name, _of_loop(loop, key)
        if versions.setdefault(loop.name, version) != version:
            raise ConfigError.of(
                key, f"another agent loop has the name {loop.name!r} too; rename one of them."
            )
    return names, versions


def default_loop_depends(config: Config) -> dict[str, str]:
    """What the answers depend on if a config has a default agent loop."""
    name = config.rollout.agent.default
    _, versions = loop_versions(config, {} if name is None else {DEFAULT_KEY: name})
    return depends_on(versions.values())


def _of_loop(loop: AgentLoop, key: str) -> CodeVersion:
    """Of the class, by its code, and of the constructor's keywords with the classes they name."""
    try:
        kwargs = OmegaConf.to_yaml(loop.kwargs, resolve=True, sort_keys=True)
        values = OmegaConf.to_container(loop.kwargs, resolve=True)
    except Exception as failure:  # of an interpolation
        raise ConfigError.of(key, f"{loop.name}: {error_text(failure).splitlines()[0]}.") from None
    folder = Path(loop.file).resolve().parent if loop.file else None
    modules = [target.rpartition(".")[0] for target in named_in(values, TARGET)]
    code = version_of(loop.kind, folder=folder, imports=modules)
    return CodeVersion.of_all(f"{LOOP}{loop.name}", [code], loop.kind.__qualname__, kwargs)


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
