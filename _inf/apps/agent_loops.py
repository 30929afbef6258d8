"""What the answers of agent loops depend on: the entry that asks for a loop, and its code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from _inf.apps.code_version import CodeVersion, depends_on, version_of
from _inf.apps.configured_code import named_in
from _inf.backends.registry import describe
from _inf.config import Config
from _inf.conversation.agent_loops.loading import DEFAULT_KEY, TARGET, AgentLoop, KnownLoops
from _inf.errors import ConfigError, error_text

LOOP = "agent loop "  # before a name, in what scored a row and what a file was begun with


class LoopVersion(NamedTuple):
    """An agent loop's name, and the version of its code and its entry."""

    loop: str
    version: CodeVersion


def loop_versions(config: Config, asked: Mapping[str, Any]) -> dict[str, LoopVersion]:
    """Find agent loops; the import of verl's takes seconds.

    asked: the loops as they were asked for, each by what asks for it, which begins the message of
    a `ConfigError` about it, and is its key in what is returned.
    """
    if not asked:
        return {}
    describe(config).prepare(config)
    known = KnownLoops(config)
    found: dict[str, LoopVersion] = {}
    for key, each in asked.items():
        loop = known.find(each, key)
        found[key] = LoopVersion(loop.name, _version(loop, key))
        if any(other.loop == loop.name and other != found[key] for other in found.values()):
            raise ConfigError.of(
                key, f"another agent loop has the name {loop.name!r} too; rename one of them."
            )
    return found


def default_loop_depends(config: Config) -> dict[str, str]:
    """What the answers depend on if a config has a default agent loop."""
    name = config.rollout.agent.default
    found = loop_versions(config, {} if name is None else {DEFAULT_KEY: name})
    return depends_on(each.version for each in found.values())


def _version(loop: AgentLoop, key: str) -> CodeVersion:
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
