"""Makes one checked `Config` from its layers: overrides, then a file or a mapping, then the
defaults, of which the embedded model has its own.

All faults are collected into one error, so that a user corrects a file once.
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import ValidationError

from _inf.config.other_names import hint, named
from _inf.config.schema import Config, RolloutConfig
from _inf.config.source import (
    ABSENT,
    Source,
    at,
    embedded_rollout,
    first_line,
    not_yaml,
    plain,
    read_source,
)
from _inf.config.verl_keys import ONE_VALUE, OWNED_BY_ENGINE, OWNED_BY_KEY, RENAMED
from _inf.errors import ConfigError, did_you_mean, shown, value_fault
from _inf.types import JSON

Faults = Iterator[tuple[str, str]]  # the path of a key, and what is wrong there

# Keys that turn sampling on, each with the value that does not.
ASKS_TO_SAMPLE: Mapping[str, float] = {"temperature": 0, "top_p": 1.0, "top_k": -1}
# Lengths that shrink to fit the model if nobody set them: they are then not in `model_fields_set`,
# even if embedded.yaml has them.
FOLLOW_THE_MODEL = ("prompt_length", "response_length")
# Keys of the older, flat form, with their present path.
FLAT: Mapping[str, str] = {
    **{
        key: f"rollout.{key}" for key in [*RolloutConfig.model_fields, *ONE_VALUE] if "." not in key
    },
    **RENAMED,
}
WHOLE_VERL_CONFIG = (
    "actor_rollout_ref: this is a trainer's config; use InferenceEngine.from_verl(FILE), and on "
    "the command line --verl FILE in place of -c"
)


def load_config(
    source: Source | Config,
    overrides: Mapping[str, object],
    unread_by: Callable[[object], Collection[str]] = lambda name: (),
    faults_of: Callable[[Config], Faults] = lambda config: iter(()),
    lengths: Mapping[str, int] | None = None,
) -> Config:
    """Read `source`, merge `overrides` over it, check everything; every fault is one line.

    A `Config` as source gives the keys that were set in it. The backends (`backends/registry.py`)
    provide `unread_by`, the keys under `rollout` that the backend of a name does not read, and
    `faults_of`, the faults that they find in a config. lengths: defaults of prompt_length and
    response_length, for a backend that reads them, and unless `max_model_len` is set."""
    with resolving():
        if isinstance(source, Config):
            below, lengths = source.model_dump(exclude_unset=True), lengths or _lengths_in(source)
        else:
            below = read_source(source)
        if "actor_rollout_ref" in below:
            raise ConfigError(WHOLE_VERL_CONFIG)
        above = _lift_flat_keys(plain(overrides))
        below = _lift_flat_keys(below)
        merged = OmegaConf.create(over(below, above))
        document: Any = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    own: JSON = {}
    given = {} if (section := document.get("rollout")) is None else section
    if isinstance(given, dict):
        unread = unread_by(given.get("name", RolloutConfig.model_fields["name"].default))
        own = _defaults(document.get("model_path"), given, lengths)
        own = {name: value for name, value in own.items() if name not in unread}
        document["rollout"] = {**own, **given}
    config = _checked(document, faults_of)
    said = source.rollout.model_fields_set if isinstance(source, Config) else given
    for name in {*FOLLOW_THE_MODEL, *own}:
        if name not in said and at(above, f"rollout.{name}") is ABSENT:
            config.rollout.model_fields_set.discard(name)
    return config.of_source(source.source) if isinstance(source, Config) else config


def _lengths_in(config: Config) -> dict[str, int]:
    """Return the lengths that a command gave (`lengths`): nobody set them."""
    defaults = RolloutConfig().widths, RolloutConfig(**embedded_rollout()).widths
    lengths = zip(FOLLOW_THE_MODEL, config.rollout.widths, *defaults, strict=True)
    return {name: now for name, now, *known in lengths if now not in known}


@contextlib.contextmanager
def resolving() -> Iterator[None]:
    """Say of OmegaConf's errors which key they are about."""
    try:
        yield
    except RecursionError:
        raise ConfigError.of("config", "a value contains itself, or is nested too deeply") from None
    except MissingMandatoryValue as error:
        why = "is '???', which means that it must be set"
        raise ConfigError.of(error.full_key, why) from None
    except OmegaConfBaseException as error:
        where = error.full_key or "config"
        raise ConfigError(f"{where}: cannot be resolved: {first_line(error)}") from None


def _defaults(model_path: object, given: JSON, lengths: Mapping[str, int] | None) -> JSON:
    """Return the defaults that differ from the library's, for keys under `rollout` that are not
    `given`: the embedded model's, which samples if a key asks for it, and a command's `lengths`."""
    own = embedded_rollout() if model_path is None else {}
    if any(given.get(name, neutral) != neutral for name, neutral in ASKS_TO_SAMPLE.items()):
        own.pop("do_sample", None)
    if (room := given.get("max_model_len")) is None:
        return {**own, **(lengths or {})}
    response = given.get("response_length", RolloutConfig.model_fields["response_length"].default)
    if isinstance(room, int) and isinstance(response, int):
        if room < own.get("prompt_length", 0) + response:
            own.pop("prompt_length", None)
    return own


def parse_assignments(texts: Iterable[str]) -> JSON:
    """Turn `["rollout.dtype=float32"]` into `{"rollout": {"dtype": "float32"}}`. Values are YAML,
    and the last value of a key wins."""
    merged: JSON = {}
    for text in texts:
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals or not all(key.strip() for key in path.split(".")):
            raise ConfigError(f"{text}: expected KEY=VALUE, such as rollout.dtype=float32")
        try:
            tree: Any = OmegaConf.to_container(OmegaConf.from_dotlist([f"{path}={value}"]))
        except Exception as error:  # PyYAML's constructors may raise anything
            raise not_yaml(path, error) from None
        if keys := [key for key in _paths(tree) if ":" in key]:
            raise ConfigError(f"{text}: in YAML a space follows each colon; {keys[0]!r} is a key")
        merged = over(merged, tree)
    return merged


def over(below: Mapping[str, object], above: Mapping[str, object]) -> JSON:
    """Merge mappings and replace other values, except by `???` (OmegaConf's "missing")."""
    merged: JSON = dict(below)
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = over(merged[key], value)
        elif key not in merged or not isinstance(value, str) or value != "???":
            merged[key] = value
    return merged


def placed(path: str, value: object) -> JSON:
    """Return a config with only the key `path`, a dotted path."""
    *above, name = path.split(".")
    tree: JSON = {name: value}
    for key in reversed(above):
        tree = {key: tree}
    return tree


def _lift_flat_keys(layer: JSON) -> JSON:
    """Move keys of the older form to their new path. This happens before layers are merged, so that
    an override in either form wins over the file's key in the other form."""
    flat = [key for key in layer if key in FLAT]
    if not flat or not isinstance(layer.get("rollout"), (dict, type(None))):
        return layer
    lifted = {key: value for key, value in layer.items() if key not in FLAT}
    for key in flat:
        path, value = FLAT[key], layer[key]
        warnings.warn(f"config key {key!r} is now {path!r}", DeprecationWarning, stacklevel=5)
        nested = at(lifted, path)
        if nested is not ABSENT and nested != value:
            fault = f"{shown(value)} contradicts {shown(nested)} at {path}"
            raise ConfigError.of(key, f"{fault}; set only {path}")
        lifted = over(lifted, placed(path, value))
    return lifted


def _paths(tree: Mapping[str, object], above: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{key}.")


# All keys, by their dotted paths.
KEYS = [*_paths(Config().to_dict()), *(f"rollout.{key}" for key in ONE_VALUE if "." not in key)]
# The right path of each key, for keys in the wrong place; the shorter path if there are two.
_PLACES: Mapping[str, str] = {
    **{key.rpartition(".")[2]: key for key in sorted(KEYS, key=lambda key: -key.count("."))},
    **RENAMED,
}


def _checked(document: JSON, faults_of: Callable[[Config], Faults]) -> Config:
    """Return the config of `document`, from which the keys of `ONE_VALUE` are removed. `faults_of`
    is called only if every value is valid."""
    faults = dict([*_take_one_valued(document.get("rollout")), *_owned_arguments(document)])
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = ".".join(map(str, detail["loc"])) or "config"
            unknown = detail["type"] == "extra_forbidden"
            faults.setdefault(path, _unknown(path) if unknown else value_fault(detail))
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


def _owned_arguments(document: JSON) -> Faults:
    path = "rollout.engine_kwargs.sglang"
    arguments = at(document, path)
    for key in arguments if isinstance(arguments, dict) else ():
        if owner := OWNED_BY_KEY.get(key):
            yield f"{path}.{key}", f"set {owner} instead"
        elif key in OWNED_BY_ENGINE:
            yield f"{path}.{key}", "the engine sets it itself; remove it"


def _unknown(path: str) -> str:
    section, _, key = path.rpartition(".")
    if key in _PLACES:
        return f"unknown key; it belongs at {_PLACES[key]}"
    siblings = [other.rpartition(".")[2] for other in KEYS if other.rpartition(".")[0] == section]
    if instead := named(key, KEYS) or hint(key, siblings):
        return f"unknown key{instead}"
    nearest = difflib.get_close_matches(key, list(_PLACES), n=1, cutoff=0.7)
    return f"unknown key; did you mean {_PLACES[nearest[0]]!r}?" if nearest else "unknown key"
