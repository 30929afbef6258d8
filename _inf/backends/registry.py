"""The list of all backends, and what their descriptions decide together."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

from _inf.backends.base import FEATURES, Backend
from _inf.backends.description import BackendDescription, Faults, Mode
from _inf.backends.hf import HF
from _inf.backends.model_info import with_limits, with_thought_marks
from _inf.backends.openai import OPENAI
from _inf.backends.verl import SGLANG
from _inf.config import Config, load_config
from _inf.config.source import ABSENT, Source, at
from _inf.errors import ConfigError, did_you_mean, shown
from _inf.request import values
from _inf.response.stats import Stats
from _inf.runtime.extras import without_verl
from _inf.runtime.interpreter import quick_imports
from _inf.runtime.processes import starting

BACKENDS = (SGLANG, HF, OPENAI)
MODES = tuple(mode for backend in BACKENDS for mode in backend.modes)
# What does the work of a feature where a backend lacks it, or what the backend needs for it.
INSTEAD = {
    "adapters": " adapter_path merges one adapter when an engine starts.",
    "routed_experts": " rollout.engine_kwargs.sglang.enable_return_routed_experts must be true "
    "when the engine starts, and the model must have experts.",
}
# Config keys that name files of classes of verl, or one of these.
NAME_VERLS_CODE = (
    "rollout.multi_turn.interaction_config_path",
    "rollout.agent.default_agent_loop",
    "rollout.agent.agent_loop_config_path",
)
# Config keys that some backends do not read.
PARTLY_READ = sorted(frozenset().union(*(mode.reads for mode in MODES)))


def read_config(source: Source | Config, overrides: Mapping[str, Any]) -> Config:
    """Read and check a config, with the checks of the backend that it names."""
    return load_config(source, overrides, _unread_by, _faults)


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


def check_supported(backend: Backend, asked: Mapping[str, object]) -> None:
    """Refuse calls in a fork, and calls and keywords, by name, whose feature the backend lacks."""
    backend.check_process()
    for feature in sorted(FEATURES.keys() - backend.supports):
        for name, neutral in FEATURES[feature].items():
            if name in asked and asked[name] is not None and asked[name] != neutral:
                offers = [mode for each in BACKENDS for mode in _first_mode(each, feature)]
                others = " or ".join(mode.name for mode in offers if mode.name != backend.name)
                does = f"; rollout.name: {others} does" if others else ""
                instead = INSTEAD.get(feature, "")
                raise ConfigError.of(
                    name, f"the backend {backend.name} does not offer it{does}.{instead}"
                )


def _first_mode(described: BackendDescription, feature: str) -> list[Mode]:
    return [mode for mode in described.modes if feature in mode.supports][:1]


def check_adapters(backend: Backend, names: Sequence[str | None], keyword: str = "adapter") -> None:
    """Refuse adapters that are not loaded. names: those of a call's prompts. keyword: which the
    call has for a name."""
    if not [values.text(keyword, name) for name in names if name is not None]:
        return
    known = backend.adapters
    for index, name in enumerate(names):
        if name is not None and name not in known:
            loaded = f"; there are {', '.join(known)}." if known else "; load_adapter() loads one."
            hint = did_you_mean(name, known) or loaded
            same = len(set(names)) == 1
            which = "" if same else f" (prompt {index})"
            raise ConfigError(
                f"adapter: {shown(name)} is not loaded{hint}{which}",
                key="adapter",
                index=None if same else index,
            )


def check_new_adapter(config: Config, name: str, version: int | None) -> int | None:
    """Refuse a name that no adapter can have; return its checked version."""
    if values.text("name", name) == config.model_name:
        raise ConfigError.of("name", f"{shown(name)} is the model's; give the adapter another.")
    return _checked_version(version)


def checked_update(
    backend: Backend, version: int | None, running: str, recompute: bool
) -> tuple[int | None, bool]:
    """Check how weights are to be updated; return their version, and whether running rows go on."""
    number = _checked_version(version)
    keep = values.one_of("running", running, ("wait", "keep")) == "keep"
    if values.flag("recompute", recompute) or keep:
        check_supported(backend, {"pause()": True})
    if recompute and not keep and not backend.paused:
        raise ConfigError.of("recompute", "running rows end first here; set running='keep'.")
    return number, keep


def _checked_version(version: int | None) -> int | None:
    """The number of new weights; None for one more than before."""
    return None if version is None else values.count("version", version, least=0, most=2**63 - 1)


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
