"""Merges the layers of a config into one document, and turns it into a checked `Config`.

The flat keys of the older form are moved to their new path before the layers are merged, so that an
override in either form wins over the file's key in the other form.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from _inf.config.check import Faults, check
from _inf.config.schema import Config, RolloutConfig
from _inf.config.source import ABSENT, Source, at, first_line, not_yaml, plain, read_source
from _inf.config.verl_keys import ONE_VALUE, RENAMED
from _inf.errors import ConfigError, shown

# Keys that turn sampling on, with the value that does not.
ASKS_TO_SAMPLE: Mapping[str, float] = {"temperature": 0, "top_p": 1.0, "top_k": -1}
# Keys of the older form, and their path now.
FLAT: Mapping[str, str] = {
    **{
        key: f"rollout.{key}" for key in [*RolloutConfig.model_fields, *ONE_VALUE] if "." not in key
    },
    **RENAMED,
}
WHOLE_VERL_CONFIG = (
    "actor_rollout_ref: this is a whole verl config; with whole = OmegaConf.load(FILE)."
    "actor_rollout_ref, use InferenceEngine(model_path=whole.model.path, rollout=whole.rollout)"
)


def load_config(
    source: Source,
    overrides: Mapping[str, Any],
    unread_by: Callable[[object], Collection[str]] = lambda name: (),
    faults_of: Callable[[Config], Faults] = lambda config: iter(()),
) -> Config:
    """Read `source`, merge `overrides` over it, check everything; every fault is one line.

    Of the backends (`backends/registry.py`) come `unread_by`, the keys under `rollout` that the one
    of a name does not read, and `faults_of`, what they find to be wrong."""
    try:
        below = read_source(source)
        if "actor_rollout_ref" in below:
            raise ConfigError(WHOLE_VERL_CONFIG)
        above = _lift_flat_keys(plain(overrides))
        if source is None:  # the embedded config is for engines on this machine
            unread = unread_by(at(above, "rollout.name"))
            rollout = {k: v for k, v in below["rollout"].items() if k not in unread}
            below = {**below, "rollout": rollout}
        merged = OmegaConf.create(_over(_lift_flat_keys(below), above))
        document: Any = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except RecursionError:
        raise ConfigError("config: a value contains itself, or is nested too deeply") from None
    except MissingMandatoryValue as error:
        why = "is '???', which means that it must be set"
        raise ConfigError(f"{error.full_key}: {why}") from None
    except OmegaConfBaseException as error:
        where = error.full_key or "config"
        raise ConfigError(f"{where}: cannot be resolved: {first_line(error)}") from None
    if source is None and at(above, "rollout.do_sample") is ABSENT:
        # The embedded config is greedy, unless an override asks for sampling.
        for name, neutral in ASKS_TO_SAMPLE.items():
            path = f"rollout.{name}"
            if at(above, path) is not ABSENT and at(document, path) != neutral:
                document["rollout"]["do_sample"] = True
    return check(document, faults_of)


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """`["rollout.dtype=float32"]` -> `{"rollout": {"dtype": "float32"}}`: the values are YAML, and
    the last value of a key wins."""
    merged: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals or not all(key.strip() for key in path.split(".")):
            raise ConfigError(f"{text}: expected KEY=VALUE, such as rollout.dtype=float32")
        try:
            tree: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"{path}={value}"]))
        except Exception as error:  # PyYAML's constructors may raise anything
            raise not_yaml(path, error) from None
        merged = _over(merged, tree)
    return merged


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings and replace other values; `???` (OmegaConf's "missing") replaces nothing."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _over(merged[key], value)
        elif value != "???" or key not in merged:
            merged[key] = value
    return merged


def _lift_flat_keys(layer: dict[str, Any]) -> dict[str, Any]:
    flat = [key for key in layer if key in FLAT]
    if not flat or not isinstance(layer.get("rollout"), (dict, type(None))):
        return layer
    lifted = {key: value for key, value in layer.items() if key not in FLAT}
    for key in flat:
        path, value = FLAT[key], layer[key]
        warnings.warn(f"config key {key!r} is now {path!r}", DeprecationWarning, stacklevel=4)
        nested = at(lifted, path)
        if nested is not ABSENT and nested != value:
            fault = f"{shown(value)} contradicts {shown(nested)} at {path}"
            raise ConfigError(f"{key}: {fault}; set only {path}")
        for name in reversed(path.split(".")):
            value = {name: value}
        lifted = _over(lifted, value)
    return lifted
