"""The versions of the code that a run's answers depend on: of the files of a config, of a call's
tools, of agent loops and their entries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from _inf.apps.code_version import CodeVersion, depends_on, version_of
from _inf.backends.registry import describe
from _inf.config import Config
from _inf.conversation.agent_loops.loading import DEFAULT_KEY, AgentLoop, KnownLoops
from _inf.errors import ConfigError, error_text
from _inf.types import Tool

OF_TOOLS = "code of the tools"
LOOP = "agent loop "  # before a name, in what scored a row and what a file was begun with


def of_file(name: str, path: Path) -> CodeVersion:
    """The version of the user's modules and scripts that any text in a file of tools or
    interactions names: classes, programs of MCP servers. Nothing is imported or started. A file of
    another form names no code: loading it says what is wrong."""
    texts = [*_texts(_values(path))]
    scripts = [script for text in texts if (script := Path(text)).suffix == ".py"]
    code = version_of("", folder=path.resolve().parent, imports=texts, scripts=scripts)
    return CodeVersion.of_all(name, [code])


def of_tools(tools: Sequence[Tool]) -> dict[str, str]:
    """The code that runs a call's `tools`: answers depend on it as they do on the schemas."""
    runs = [tool.function or tool.verl for tool in tools if tool.executable]
    versions = [version_of(code) for code in runs]
    return depends_on([CodeVersion.of_all(OF_TOOLS, versions)] if versions else [])


def loop_versions(
    config: Config, asked: Mapping[str, object]
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
                key, f"another agent loop also has the name {loop.name!r}; rename one of them."
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
    code = version_of(loop.kind, folder=folder, imports=_texts(values))
    return CodeVersion.of_all(f"{LOOP}{loop.name}", [code], loop.kind.__qualname__, kwargs)


def _texts(values: object) -> Iterator[str]:
    """All texts in mappings and lists of any depth."""
    if isinstance(values, str):
        yield values
    elif isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _texts(value)


def _values(path: Path) -> object:
    values = None
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    with contextlib.suppress(Exception):  # of OmegaConf's resolvers: the loading says it
        return OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    return values
