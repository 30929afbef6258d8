"""Layers of config become one document, and the document a checked `Config`.

The flat keys of the older form find their place in each layer before the layers merge, so that an
override in either form wins over the file's in the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import BaseModel

from _inf.config.check import ABSENT, at, checked
from _inf.config.faults import Faults, first_line, join, shown
from _inf.config.rules import RENAMED
from _inf.config.schema import Config, Rollout
from _inf.config.source import Source, parse_yaml, plain_mapping, read_source
from _inf.errors import ConfigError

# Keys whose values ask for sampling, but for the one that does not.
ASKS_TO_SAMPLE: Mapping[str, float] = {"temperature": 0, "top_p": 1.0, "top_k": -1}
FLAT: Mapping[str, str] = {
    **{
        key: f"rollout.{key}"
        for key, field in Rollout.model_fields.items()
        if not isinstance(field.default, (BaseModel, dict))
    },
    **RENAMED,
}
WHOLE_VERL_CONFIG = (
    "actor_rollout_ref: this is a whole verl config, of which two parts belong here: "
    "actor_rollout_ref.rollout as rollout, and actor_rollout_ref.model.path as model_path; with "
    "OmegaConf, whole = OmegaConf.load(FILE).actor_rollout_ref and InferenceEngine("
    "model_path=whole.model.path, rollout=whole.rollout)"
)


def load_config(source: Source, overrides: Mapping[str, Any]) -> Config:
    """Read `source`, merge `overrides` over it, check everything; every fault is one line."""
    faults = Faults()
    try:
        below = read_source(source, faults)
        if "actor_rollout_ref" in below:
            raise ConfigError(WHOLE_VERL_CONFIG)
        below = _lift_flat_keys(below, faults)
        above = _lift_flat_keys(plain_mapping(overrides, faults), faults)
        document = _resolve(OmegaConf.create(_over(below, above)), "", faults)
        if source is None and at(above, "rollout.do_sample") is ABSENT:
            _sample_where_asked(document, above)
    except RecursionError:
        raise ConfigError("config: a value holds itself, or lies too deep") from None
    except OmegaConfBaseException as error:
        path = error.full_key or "config"
        raise ConfigError(f"{path}: cannot be resolved: {first_line(error)}") from None
    return checked(document, faults)


def parse_assignment(text: str) -> dict[str, Any]:
    """`"rollout.dtype=float32"` -> `{"rollout": {"dtype": "float32"}}`; the value is YAML."""
    path, equals, value = text.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"{text}: expected KEY=VALUE, such as rollout.dtype=float32")
    return _tree(keys, parse_yaml(value, path.strip()))


def parse_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Several assignments as one mapping of overrides; of one key the last wins."""
    merged: dict[str, Any] = {}
    for text in texts:
        merged = _over(merged, parse_assignment(text))
    return merged


def _sample_where_asked(document: dict[str, Any], above: Mapping[str, Any]) -> None:
    """The embedded default is greedy only where nothing that is laid over it asks for sampling."""
    for name, neutral in ASKS_TO_SAMPLE.items():
        path = f"rollout.{name}"
        if at(above, path) is not ABSENT and at(document, path) != neutral:
            document["rollout"]["do_sample"] = True


def _tree(keys: list[str], value: Any) -> dict[str, Any]:
    return {keys[0]: _tree(keys[1:], value) if keys[1:] else value}


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge, all else is replaced; `???` (OmegaConf's "not said") replaces nothing."""
    merged = dict(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _over(merged[key], value)
        elif value != "???" or key not in merged:
            merged[key] = value
    return merged


def _lift_flat_keys(layer: dict[str, Any], faults: Faults) -> dict[str, Any]:
    flat = [key for key in layer if key in FLAT]
    if not flat or not isinstance(layer.get("rollout", {}), (dict, type(None))):
        return layer
    lifted = {key: value for key, value in layer.items() if key not in FLAT}
    named: dict[str, str] = {}  # place -> the flat key that filled it
    for key in flat:
        place, value = FLAT[key], layer[key]
        warnings.warn(f"config key {key!r} is now {place!r}", DeprecationWarning, stacklevel=4)
        there = at(lifted, place)
        if there is ABSENT:
            lifted = _over(lifted, _tree(place.split("."), value))
            named[place] = key
        elif there != value:
            other = named.get(place, place)
            faults.note(
                key, f"{shown(value)} contradicts {other}: {shown(there)}; keep one, as {place}"
            )
    return lifted


def _resolve(node: DictConfig, path: str, faults: Faults) -> dict[str, Any]:
    """The tree with its interpolations resolved; what fails is left out and noted."""
    tree: dict[str, Any] = {}
    for key in map(str, node):
        here = join(path, key)
        try:
            value = node[key]
            if isinstance(value, ListConfig):
                value = OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        except MissingMandatoryValue:
            faults.note(here, "is '???', which means that it must be given; set it")
        except OmegaConfBaseException as error:
            faults.note(here, f"cannot be resolved: {first_line(error)}")
        else:
            nested = isinstance(value, DictConfig)
            tree[key] = _resolve(value, here, faults) if nested else value
    return tree
