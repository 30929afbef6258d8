"""The list of all backends, and what their descriptions decide together."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import cast

from _inf.backends.base import Backend
from _inf.backends.description import BackendDescription, Faults
from _inf.backends.hf import HF
from _inf.backends.model_info import with_limits, with_thought_marks
from _inf.backends.openai import OPENAI
from _inf.backends.verl import SGLANG
from _inf.config import Config, load_config
from _inf.config.source import ABSENT, Source, at
from _inf.errors import ConfigError, shown
from _inf.response.stats import Stats
from _inf.runtime.extras import without_verl
from _inf.runtime.forks import starting
from _inf.runtime.interpreter import quick_imports

BACKENDS = (SGLANG, HF, OPENAI)
MODES = tuple(mode for backend in BACKENDS for mode in backend.modes)
# Config keys that name files of classes of verl, or one of these.
NAME_VERLS_CODE = (
    "rollout.multi_turn.interaction_config_path",
    "rollout.agent.default_agent_loop",
    "rollout.agent.agent_loop_config_path",
)
# Config keys that some backends do not read.
PARTLY_READ = sorted(frozenset().union(*(mode.reads for mode in MODES)))


def read_config(
    source: Source | Config,
    overrides: Mapping[str, object],
    lengths: Mapping[str, int] | None = None,
) -> Config:
    """Read and check a config, with the checks of the backend that it names. lengths: as for
    `load_config`."""
    return load_config(source, overrides, _unread_by, _faults, lengths)


def read_trainers_config(
    source: str | os.PathLike[str] | Mapping[str, object],
    overrides: Mapping[str, object] | Iterable[str] | None,
) -> Config:
    """Read the config of a verl trainer; all its faults are lines of one error."""
    from _inf.config.trainer import read_trainer

    read = read_trainer(source, overrides, _unread_by)
    try:
        config = read_config(read.document, {})
    except ConfigError as error:
        read.faults.append(str(error))
    if read.faults:
        raise ConfigError("\n".join(read.faults), key=read.faults[0].partition(":")[0])
    return config.of_source(str(read))


def describe(config: Config) -> BackendDescription:
    [description] = [each for each in BACKENDS if each.name == config.rollout.name]
    return description


def launch(config: Config, stats: Stats) -> tuple[Backend, Config]:
    """Start the backend of a config; return the config with the model's limits, too. stats: counts
    the hits of `generation_cache`."""
    with starting():
        with quick_imports():
            start = pkgutil.resolve_name(describe(config).launch)
        backend: Backend = start(config)
    backend.model = with_thought_marks(backend.model, config)
    if size := config.generation_cache:
        from _inf.backends.generation_cache import CachedBackend

        backend = cast(Backend, CachedBackend(backend, size, stats))
    return backend, with_limits(config, backend.model.limits)


def restarting(config: Config) -> AbstractContextManager[None]:
    """Around the end of a backend and the start of another one in its place."""
    context: AbstractContextManager[None] = pkgutil.resolve_name(describe(config).restarting)()
    return context


def _unread_by(name: object) -> list[str]:
    """The keys under `rollout` that the backend of that name does not read in its first mode."""
    modes = [each.modes[0] for each in BACKENDS if each.name == name]
    unread = (path for mode in modes for path in PARTLY_READ if path not in mode.reads)
    return [path.removeprefix("rollout.") for path in unread]


def _faults(config: Config) -> Faults:
    names = [each.name for each in BACKENDS]
    if config.rollout.name not in names:
        known = f"{', '.join(map(repr, names[:-1]))} or {names[-1]!r}"
        yield "rollout.name", f"must be {known}, not {shown(config.rollout.name)}"
        return
    backend = describe(config)
    mode, given, default = backend.mode(config), config.to_dict(), Config().to_dict()
    for path in PARTLY_READ:
        value = ABSENT if path in mode.reads else at(given, path)
        why = f"rollout.name is {backend.name}, which does not read it"
        if isinstance(value, dict):
            for key in (key for key, each in value.items() if each is not None):
                yield f"{path}.{key}", f"{why}; remove it"
        elif value is not ABSENT and value != (neutral := at(default, path)):
            others = [f"; {each.name} does" for each in backend.modes if path in each.reads]
            yield path, f"must be {shown(neutral)}, not {shown(value)}: {why}{''.join(others)}"
    for path in NAME_VERLS_CODE:
        if at(given, path) != at(default, path) and (fault := without_verl(path)):
            yield path, fault
    yield from backend.faults(config)
