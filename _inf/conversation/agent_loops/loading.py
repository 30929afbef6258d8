"""Finds the class of an agent loop: by a name of verl's or of a file, or as the caller gave it.

verl 0.6.1 (`experimental/agent_loop/agent_loop.py`, `AgentLoopWorkerBase`) has hydra find it anew
for each row, which takes 4 ms; here it is found once for a call.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from _inf.config import Config
from _inf.config.sections import SINGLE_TURN
from _inf.errors import ConfigError, did_you_mean, error_text, shown
from _inf.runtime import quiet
from _inf.runtime.extras import require_verl
from _inf.runtime.interpreter import interpreter_left_alone, quick_imports
from _inf.tools.loading import import_beside

FILE_KEY = "rollout.agent.agent_loop_config_path"
DEFAULT_KEY = "rollout.agent.default_agent_loop"
KEYWORD = "agent_loop"
TARGET, NAME = "_target_", "name"
GIVEN = "trainer_config server_manager tokenizer processor".split()  # by verl, to each loop


@dataclasses.dataclass(frozen=True)
class AgentLoop:
    """An agent loop as it was asked for. name: for messages and rows. kind: its class. kwargs: of
    its constructor, in addition to what verl gives to each. file: the YAML file that lists it."""

    name: str
    kind: type
    kwargs: DictConfig
    file: str | None = None

    @functools.cached_property
    def text(self) -> str:
        """The keywords as YAML."""
        return str(OmegaConf.to_yaml(self.kwargs))


class KnownLoops:
    """The agent loops that have names: those of a config's file, and verl's."""

    def __init__(self, config: Config) -> None:
        agent = config.rollout.agent
        self._file = agent.agent_loop_config_path
        self._entries = _file_entries(self._file) if self._file else {}
        for name in self._entries:
            self.find(name, FILE_KEY)
        if agent.default is not None:
            self.find(agent.default, DEFAULT_KEY)

    def find(self, asked: Any, key: str = KEYWORD) -> AgentLoop:
        """Return the loop of a name, of a class, or of a mapping with `_target_`; raise
        `ConfigError` about `key`, which was set to it."""
        require_verl(key)
        if isinstance(asked, type):
            return AgentLoop(_registered_name(asked), _checked(asked, key), OmegaConf.create({}))
        if not isinstance(asked, str):
            try:
                entry = OmegaConf.create(dict(asked))
            except Exception as failure:
                why = error_text(failure).splitlines()[0]
                raise ConfigError.of(
                    key,
                    f"{why}; its values must be of types that a YAML file has. Give objects in "
                    "agent_kwargs, or a class that knows them.",
                ) from failure
            return _loop(entry, None, key, None)
        if asked in self._entries:
            return _loop(self._entries[asked], asked, key, self._file)
        registry = verl_module()._agent_loop_registry
        if asked in registry:
            return _loop(OmegaConf.create(dict(registry[asked])), asked, key, None)
        known = sorted({*self._entries, *registry})
        hint = did_you_mean(asked, known) or f"; there are {', '.join(known)}."
        raise ConfigError.of(
            key,
            f"no agent loop has the name {shown(asked)}{hint} List yours in the file of {FILE_KEY},"
            " import the module that registers it, or give its class.",
        )


@functools.cache
def verl_module() -> Any:
    """verl's module of agent loops; its import, which imports Ray, takes some seconds."""
    with quiet.third_party(), quick_imports(), interpreter_left_alone():
        from verl.experimental.agent_loop import agent_loop

    return agent_loop


def _file_entries(path: str) -> dict[str, DictConfig]:
    """Read verl's form: a list of `name`, `_target_` and the constructor's other keywords."""
    try:
        listed = OmegaConf.create(yaml.safe_load(Path(path).read_text(encoding="utf-8")))
    except Exception as failure:
        why = error_text(failure).splitlines()[0]
        raise ConfigError.of(FILE_KEY, f"{path} cannot be read: {why}.") from failure
    if not OmegaConf.is_list(listed) or not listed:
        raise ConfigError.of(FILE_KEY, f"{path}: it must be a list of agent loops.")
    entries: dict[str, DictConfig] = {}
    for index, entry in enumerate(listed):
        fault, name, target = "", None, None
        try:
            if OmegaConf.is_dict(entry):
                name, target = entry.get(NAME), entry.get(TARGET)
        except OmegaConfBaseException as failure:  # of an interpolation, such as ${oc.env:NAME}
            fault = error_text(failure).splitlines()[0]
        if not fault and not (isinstance(name, str) and isinstance(target, str)):
            fault = f"it must have a {NAME} and a {TARGET}, module.Class"
        elif name in entries:
            fault = f"an earlier entry has the name {name!r}"
        elif name == SINGLE_TURN:
            fault = (
                f"{name!r} is verl's own loop and the same as plain generate(); give yours "
                "another name"
            )
        if fault:
            raise ConfigError.of(FILE_KEY, f"{path}, entry {index}: {fault}.")
        entries[str(name)] = entry
    return entries


def _loop(entry: DictConfig, name: str | None, key: str, file: str | None) -> AgentLoop:
    target = entry[TARGET]
    module_name, _, class_name = target.rpartition(".")
    where = f"{file}: {target}" if file else target
    try:
        with quiet.third_party(), interpreter_left_alone():
            find_module = (
                importlib.import_module if file is None else functools.partial(import_beside, file)
            )
            module = find_module(module_name)
    except Exception as failure:
        why = f"{module_name or 'its module'} cannot be imported: {error_text(failure)}."
        raise ConfigError.of(key, f"{where}: {why}") from failure
    kind = getattr(module, class_name, None)
    if kind is None:
        hint = did_you_mean(class_name, vars(module)) or "."
        raise ConfigError.of(key, f"{where}: {module_name} has no {class_name}{hint}")
    kwargs = OmegaConf.masked_copy(entry, [each for each in entry if each != TARGET])
    for each in kwargs:
        if each in GIVEN or str(each).startswith("_"):
            raise ConfigError.of(key, f"{where}: {each} cannot be set; verl or hydra uses it.")
    return AgentLoop(str(name or entry.get(NAME) or class_name), _checked(kind, key), kwargs, file)


def _checked(kind: object, key: str) -> type:
    if not isinstance(kind, type) or not issubclass(kind, verl_module().AgentLoopBase):
        raise ConfigError.of(
            key,
            f"{shown(kind)} is not a subclass of verl's AgentLoopBase "
            "(verl.experimental.agent_loop.agent_loop).",
        )
    return kind


def _registered_name(kind: type) -> str:
    """The name under which `@register` has a class; without one, the class's own."""
    target = {TARGET: f"{kind.__module__}.{kind.__qualname__}"}
    registry: Mapping[str, object] = verl_module()._agent_loop_registry
    return next((name for name, entry in registry.items() if entry == target), kind.__name__)
