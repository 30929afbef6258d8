"""A resolved document against models and rules: a `Config`, or all that is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from _inf.config.faults import Faults, join, shown
from _inf.config.rules import (
    ALSO_NEUTRAL,
    FIXED,
    IGNORED,
    IGNORED_SECTIONS,
    OWNED_BY_ENGINE,
    OWNED_BY_KEY,
    RENAMED,
)
from _inf.config.schema import Config
from _inf.errors import did_you_mean

ABSENT: Any = object()


def at(tree: Any, path: str) -> Any:
    """What stands at a dotted path, or `ABSENT`."""
    for key in path.split("."):
        if not isinstance(tree, Mapping) or key not in tree:
            return ABSENT
        tree = tree[key]
    return tree


def _walk(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        here = join(path, key)
        yield here, value
        if isinstance(value, dict):
            yield from _walk(value, here)


_DEFAULTS: Mapping[str, Any] = Config().to_dict()
_KEYS: Mapping[str, Any] = dict(_walk(_DEFAULTS))
# Where a key that stands in the wrong place belongs; of two places, the one nearest the top.
_PLACES: Mapping[str, str] = {
    **{path.rpartition(".")[2]: path for path in sorted(_KEYS, key=lambda k: -k.count("."))},
    **RENAMED,
}
_RULES: Mapping[str, str] = {**FIXED, **IGNORED}


def checked(document: dict[str, Any], faults: Faults) -> Config:
    """The config that `document` says; raises if it, or what was noted before, has faults."""
    config = None
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = ""
            for part in detail["loc"]:
                path = f"{path}[{part}]" if isinstance(part, int) else join(path, part)
            faults.note(path, _wording(path, detail["type"], detail))
    _check_rules(document, faults)
    _check_owners(document, faults)
    if faults or config is None:
        raise faults.error(path for path, _ in _walk(document))
    return config


def check_engine_kwargs(config: Config, known_fields: Collection[str]) -> None:
    """Refuse `engine_kwargs.sglang` keys that are no field of SGLang's ServerArgs."""
    faults = Faults()
    for key in config.rollout.engine_kwargs["sglang"]:
        if key not in known_fields:
            hint = did_you_mean(key, known_fields)
            faults.note(f"rollout.engine_kwargs.sglang.{key}", f"SGLang has no such argument{hint}")
    if faults:
        raise faults.error(())


_EXPECTED: Mapping[str, str] = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "string_too_short": "a string that is not empty",
    "list_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
}


def _wording(path: str, kind: str, detail: Mapping[str, Any]) -> str:
    value, context = detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind == "value_error":
        return str(context["error"])
    if kind not in _EXPECTED:
        return str(detail["msg"])
    hint = ""
    if isinstance(value, bool) and kind in ("string_type", "literal_error"):
        hint = "; YAML reads yes, no, on and off as true and false: quote the word"
    elif kind in ("bool_type", "int_type", "float_type") and _is_quoted_scalar(value):
        hint = "; without the quotes"
    return f"expected {_EXPECTED[kind].format(**context)}, got {shown(value)}{hint}"


def _is_quoted_scalar(value: Any) -> bool:
    try:
        return isinstance(value, str) and isinstance(yaml.safe_load(value), (bool, int, float))
    except Exception:  # PyYAML's own, or what its constructors meet: 2020-13-45, 0x_
        return False


def _unknown(path: str) -> str:
    level, _, key = path.rpartition(".")
    if key in _PLACES:
        return f"unknown key; it belongs at {_PLACES[key]}"
    siblings = [known.rpartition(".")[2] for known in _KEYS if known.rpartition(".")[0] == level]
    if hint := did_you_mean(key, siblings):
        return f"unknown key{hint}"
    nearest = difflib.get_close_matches(key, list(_PLACES), n=1, cutoff=0.7)
    if nearest:
        return f"unknown key; did you mean {_PLACES[nearest[0]]!r}?"
    return "unknown key; remove it"


def _check_rules(document: dict[str, Any], faults: Faults) -> None:
    """Keys with one possible value, and keys that nothing reads."""
    rollout = document.get("rollout")
    for path, value in _walk(rollout if isinstance(rollout, dict) else {}):
        section = path.partition(".")[0]
        if section in IGNORED_SECTIONS and at(rollout, f"{section}.enable") is False:
            continue  # switched off: verl's own files say more in it
        reason = _RULES.get(path, _RULES.get(section))
        neutral = at(_DEFAULTS["rollout"], path)
        if reason is None or (isinstance(neutral, dict) and not value):
            continue
        where = f"rollout.{path}"
        if neutral is ABSENT:
            faults.note(where, f"must be left out: {reason}")
        elif isinstance(value, dict):
            continue
        elif value != neutral and value != ALSO_NEUTRAL.get(path, neutral):
            faults.note(where, f"must be {shown(neutral)}, not {shown(value)}: {reason}")


def _check_owners(document: dict[str, Any], faults: Faults) -> None:
    """Who owns what under `engine_kwargs`."""
    engines = at(document, "rollout.engine_kwargs")
    for name, kwargs in engines.items() if isinstance(engines, dict) else ():
        path = f"rollout.engine_kwargs.{name}"
        if name == "vllm" and kwargs:
            faults.note(path, "must be empty: SGLang is the only engine here")
        elif name not in ("sglang", "vllm"):
            faults.note(path, f"unknown engine{did_you_mean(name, ['sglang'])}")
        elif isinstance(kwargs, dict):
            for key in kwargs:
                if owner := OWNED_BY_KEY.get(key):
                    faults.note(join(path, key), f"set {owner} instead")
                elif key in OWNED_BY_ENGINE:
                    faults.note(join(path, key), "the engine sets it itself; remove it")
