"""Makes JSON values of what tools, environments, interactions and agent loops return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from _inf.errors import shown

DEEPEST = 100  # nested values; `json` itself fails at several hundred
MOST_BITS = 14_000  # of an int; Python converts none of over 4,300 digits to text


def json_value(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return `value` as JSON has it. A number that is NaN or infinite becomes None; a key that is
    no text becomes text; values of numpy and torch become numbers and lists; any other one, and
    one that contains itself or is nested too deeply, becomes a short text. Never raises.

    inside: the ids of the values that contain it.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= MOST_BITS else shown(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if not isinstance(value, Mapping | list | tuple):
        return _of_object(value, inside)
    if id(value) in inside:
        return "(it contains itself)"
    if len(inside) >= DEEPEST:
        return f"(nested more than {DEEPEST} levels deep)"
    inside = (*inside, id(value))
    if isinstance(value, Mapping):
        return {_key(key): json_value(each, inside) for key, each in value.items()}
    return [json_value(each, inside) for each in value]


def _key(key: object) -> str:
    """The text that `json` makes of a key, and of one that it refuses its own text."""
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return key if isinstance(key, str) else _text(key)


def _of_object(value: Any, inside: tuple[int, ...]) -> Any:
    if hasattr(value, "tolist"):
        try:
            return json_value(value.tolist(), (*inside, id(value)))
        except Exception:
            return _text(value)
    return _text(value)


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return shown(value)
