"""Checks one keyword's value: returns a plain Python value, or raises a `ConfigError`.

In: a call's keywords, or one of their values. Knows nothing of the meaning of the values, or of a
call's other prompts.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from _inf.errors import ConfigError, shown

MOST_INT32 = 2**31 - 1
MOST_BIAS = 100.0  # OpenAI's bound
TEMPLATE_OWN = (
    "conversation",
    "tools",
    "tokenize",
    "add_generation_prompt",
    "return_tensors",
    "return_dict",
)


def stop_strings(value: object) -> list[str]:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(s, str) for s in strings):
        raise ConfigError(f"stop: {shown(value)} is neither a string nor a list of strings.")
    if "" in strings:
        raise ConfigError("stop: an empty string stops everything; leave it out.")
    for string in strings:
        try:
            string.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"stop: {shown(string)} has a lone surrogate: no Unicode.") from None
    return list(strings)


def top_k(given: Mapping[str, Any], default: int) -> int:
    """Check top_k; -1 means all tokens."""
    value = integer("top_k", given.get("top_k", default))
    if value != -1 and not 1 <= value <= MOST_INT32:
        raise ConfigError(
            f"top_k: {shown(value)} is neither -1 (all tokens) nor from 1 to {MOST_INT32}."
        )
    return value


def number(
    given: Mapping[str, Any],
    name: str,
    default: float,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{name}: {shown(value)} is not a number.")
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if name in given and not math.isfinite(real):
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
    default: int,
    *,
    least: int = 1,
    below: int = MOST_INT32 + 1,
) -> int:
    value = integer(name, given.get(name, default))
    if value < least:
        raise ConfigError(f"{name}: {shown(value)} is out of range; it must be at least {least}.")
    if value >= below:
        raise ConfigError(f"{name}: {shown(value)} is out of range; it must be below {below}.")
    return value


def flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{name}: {shown(value)} is not a bool; use True or False.")
    return value


def stop_ids(value: object, vocabulary: int) -> list[int]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"stop_token_ids: {shown(value)} is not a list of token ids.")
    ids = [integer(f"stop_token_ids[{index}]", token) for index, token in enumerate(value)]
    for index, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise ConfigError(
                f"stop_token_ids[{index}]: {shown(token)} is outside the vocabulary of "
                f"{vocabulary} tokens."
            )
    return ids


def logit_bias(value: object, vocabulary: int) -> dict[int, float]:
    """Check logit_bias; a token id is an int or its digits, because JSON keys are text."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"logit_bias: {shown(value)} is not a mapping of token ids to numbers.")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10
        token = integer("logit_bias", int(key) if digits else key)
        if not 0 <= token < vocabulary:
            raise ConfigError(
                f"logit_bias: {shown(key)} is outside the vocabulary of {vocabulary} tokens."
            )
        if token in biases:
            raise ConfigError(f"logit_bias: the token {token} appears twice.")
        name = f"logit_bias[{token}]"
        biases[token] = number({name: bias}, name, 0.0, least=-MOST_BIAS, most=MOST_BIAS)
    return biases


def template_kwargs(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(
            f"chat_template_kwargs: {shown(value)} is not a mapping of names to values."
        )
    for name in TEMPLATE_OWN:
        if name in value:
            raise ConfigError(f"chat_template_kwargs.{name}: the engine sets it itself.")
    return dict(value)
