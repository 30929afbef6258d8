"""Turns a resolved document into a `Config`, or a `ConfigError` with a line per fault."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from _inf.config.schema import Config
from _inf.config.source import at
from _inf.config.verl_keys import (
    ONE_VALUE,
    OWNED_BY_ENGINE,
    OWNED_BY_KEY,
    RENAMED,
)
from _inf.errors import ConfigError, did_you_mean, shown

Faults = Iterator[tuple[str, str]]  # the path of a key, and what is wrong there


def _paths(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")


_KEYS = [*_paths(Config().to_dict()), *(f"rollout.{key}" for key in ONE_VALUE if "." not in key)]
# From a key to its right path, for keys in the wrong place; of two paths, the shorter one.
_PLACES: Mapping[str, str] = {
    **{key.rpartition(".")[2]: key for key in sorted(_KEYS, key=lambda key: -key.count("."))},
    **RENAMED,
}


def check(document: dict[str, Any], faults_of: Callable[[Config], Faults]) -> Config:
    """Return the config of `document`; removes the keys of `ONE_VALUE` from it. `faults_of`: what
    else is wrong with a config whose values are."""
    faults = dict([*_take_one_valued(document.get("rollout")), *_owned_arguments(document)])
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = ".".join(map(str, detail["loc"])) or "config"
            faults.setdefault(path, _wording(path, detail["type"], detail))
    else:
        faults |= dict(faults_of(config))
    if faults:
        lines = [f"{path}: {fault}" for path, fault in faults.items()]
        raise ConfigError("\n".join(lines), key=next(iter(faults)))
    return config


def check_engine_kwargs(config: Config, known_fields: Collection[str]) -> None:
    """Refuse `engine_kwargs.sglang` keys that are not fields of SGLang's ServerArgs."""
    path, why = "rollout.engine_kwargs.sglang", "SGLang has no such argument"
    unknown = [key for key in config.rollout.engine_kwargs["sglang"] if key not in known_fields]
    if unknown:
        lines = [f"{path}.{key}: {why}{did_you_mean(key, known_fields)}" for key in unknown]
        raise ConfigError("\n".join(lines), key=f"{path}.{unknown[0]}")


def _take_one_valued(rollout: Any) -> Faults:
    """Remove the keys of `ONE_VALUE`; yield a fault for each that has another value."""
    for name, (neutral, reason) in ONE_VALUE.items():
        section, _, key = name.rpartition(".")
        holder = at(rollout, section) if section else rollout
        if not isinstance(holder, dict) or key not in holder:
            continue
        value, path = holder.pop(key), f"rollout.{name}"
        accepted = neutral if isinstance(neutral, tuple) else (neutral,)
        if neutral == {} and isinstance(value, (dict, type(None))):
            section_keys = value or {}
            off = section_keys.get("enable") is False
            for rest in () if off else section_keys:
                yield f"{path}.{rest}", f"must be left out: {reason}"
        elif (value, isinstance(value, bool)) not in [(v, isinstance(v, bool)) for v in accepted]:
            allowed = " or ".join(map(shown, accepted))
            yield path, f"must be {allowed}, not {shown(value)}: {reason}"


def _owned_arguments(document: dict[str, Any]) -> Faults:
    """Yield a fault for each SGLang argument that a config key or this library sets."""
    path = "rollout.engine_kwargs.sglang"
    arguments = at(document, path)
    for key in arguments if isinstance(arguments, dict) else ():
        if owner := OWNED_BY_KEY.get(key):
            yield f"{path}.{key}", f"set {owner} instead"
        elif key in OWNED_BY_ENGINE:
            yield f"{path}.{key}", "the engine sets it itself; remove it"


def _wording(path: str, kind: str, detail: Mapping[str, Any]) -> str:
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    rule = detail["msg"].removeprefix("Input ").replace("should", "must")
    return f"{rule.split(' or instance of ')[0]}, not {shown(detail['input'])}"


def _unknown(path: str) -> str:
    section, _, key = path.rpartition(".")
    if key in _PLACES:
        return f"unknown key; it belongs at {_PLACES[key]}"
    siblings = [known.rpartition(".")[2] for known in _KEYS if known.rpartition(".")[0] == section]
    if hint := did_you_mean(key, siblings):
        return f"unknown key{hint}"
    nearest = difflib.get_close_matches(key, list(_PLACES), n=1, cutoff=0.7)
    return f"unknown key; did you mean {_PLACES[nearest[0]]!r}?" if nearest else "unknown key"
