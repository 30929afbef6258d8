"""Checks one keyword's value: returns a plain Python value, or raises a `ConfigError`.

In: a call's keywords without None, the name of one, and its default, which is returned as it is.
Knows nothing of the meaning of the values, or of a call's other prompts.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any, TypeVar

from _inf.errors import ConfigError, shown

Default = TypeVar("Default", int, None)
FloatDefault = TypeVar("FloatDefault", float, None)
FlagDefault = TypeVar("FlagDefault", bool, None)

MOST_INT32 = 2**31 - 1
MOST_BIAS = 100.0  # OpenAI's bound
TEMPLATE_OWN = (
    *("conversation", "tools", "tokenize", "add_generation_prompt"),
    *("return_tensors", "return_dict"),
)


def number(
    given: Mapping[str, Any],
    name: str,
    default: FloatDefault,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float | FloatDefault:
    if name not in given:
        return default
    value = given[name]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{name}: {shown(value)} is not a number.")
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise ConfigError(f"{name}: {real} is not a finite number.")
    if real < least or real <= above or real > most:
        low = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        high = f" and at most {most:g}" if most < math.inf else ""
        raise ConfigError(f"{name}: {real:g} is out of range; it must be {low}{high}.")
    return real


def integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ConfigError(f"{name}: {shown(value)} is not an int.")
    return int(value)


def count(
    given: Mapping[str, Any],
    name: str,
    default: Default,
    *,
    least: int = 1,
    most: int = MOST_INT32,
) -> int | Default:
    if name not in given:
        return default
    value = integer(name, given[name])
    if not least <= value <= most:
        raise ConfigError(
            f"{name}: {shown(value)} is out of range; it must be from {least} to {most}."
        )
    return value


def top_k(given: Mapping[str, Any], default: int) -> int:
    """Check top_k; -1 means all tokens."""
    value = count(given, "top_k", default, least=-1)
    if value == 0:
        raise ConfigError("top_k: 0 is out of range; -1 means all tokens.")
    return value


def flag(given: Mapping[str, Any], name: str, default: FlagDefault) -> bool | FlagDefault:
    value = given.get(name, default)
    if name in given and not isinstance(value, bool):
        raise ConfigError(f"{name}: {shown(value)} is not a bool; use True or False.")
    return value  # type: ignore[no-any-return]


def flag_or_count(given: Mapping[str, Any], name: str, *, most: int) -> bool | int:
    """Check True, False, or an int from 1 on."""
    value = given.get(name, False)
    if isinstance(value, bool):
        return value
    if not isinstance(value, numbers.Integral):
        raise ConfigError(f"{name}: {shown(value)} is neither a bool nor an int.")
    return count(given, name, 1, most=most)


def mapping(given: Mapping[str, Any], name: str, section: str = "") -> dict[str, Any]:
    value = given.get(name, {})
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{section}{name}: {shown(value)} is not a mapping of names to values.")
    return dict(value)


def template_kwargs(given: Mapping[str, Any]) -> dict[str, Any]:
    kwargs = mapping(given, "chat_template_kwargs")
    for name in TEMPLATE_OWN:
        if name in kwargs:
            raise ConfigError(f"chat_template_kwargs.{name}: the engine sets it itself.")
    return kwargs


def stop_strings(given: Mapping[str, Any]) -> list[str]:
    value = given.get("stop", [])
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(s, str) for s in strings):
        raise ConfigError(f"stop: {shown(value)} is neither a string nor a list of strings.")
    if "" in strings:
        raise ConfigError("stop: an empty string stops everything; leave it out.")
    for string in strings:
        try:
            string.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"stop: {shown(string)} has a lone surrogate, which is not valid Unicode."
            ) from None
    return list(strings)


def stop_ids(given: Mapping[str, Any], vocabulary: int) -> list[int]:
    value = given.get("stop_token_ids", [])
    if not isinstance(value, list | tuple):
        raise ConfigError(f"stop_token_ids: {shown(value)} is not a list of token ids.")
    return [_token(f"stop_token_ids[{i}]", token, vocabulary) for i, token in enumerate(value)]


def _token(name: str, value: object, vocabulary: int) -> int:
    token = integer(name, value)
    if not 0 <= token < vocabulary:
        raise ConfigError(
            f"{name}: {shown(token)} is outside the vocabulary of {vocabulary} tokens."
        )
    return token


def logit_bias(given: Mapping[str, Any], vocabulary: int) -> dict[int, float]:
    """Check logit_bias; a token id is an int or its digits, because JSON keys are text."""
    value = given.get("logit_bias", {})
    if not isinstance(value, Mapping):
        raise ConfigError(f"logit_bias: {shown(value)} is not a mapping of token ids to numbers.")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10
        token = _token("logit_bias", int(key) if digits else key, vocabulary)
        if token in biases:
            raise ConfigError(f"logit_bias: the token {token} appears twice.")
        name = f"logit_bias[{token}]"
        biases[token] = number({name: bias}, name, 0.0, least=-MOST_BIAS, most=MOST_BIAS)
    return biases
