"""Converts results of user code to JSON values, so that no result can break a file of rows.

Tools, environments, interactions and agent loops may return anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from _inf.errors import shown

DEEPEST = 100  # nested values; `json` itself fails at several hundred
MOST_BITS = 14_000  # of an int; Python converts none of over 4,300 digits to text


def json_value(value: object, inside: tuple[int, ...] = ()) -> object:
    """Return `value` as a JSON value; never raises.

    NaN and infinite numbers become None, keys become text, and values of numpy and torch become
    numbers and lists. Anything else becomes a short text, and so does a value that contains itself
    or is nested too deeply. inside: the ids of the values that contain it.
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
        return {_key(key): json_value(item, inside) for key, item in value.items()}
    return [json_value(item, inside) for item in value]


def _key(key: object) -> str:
    """Return a key as text: as `json` writes it, or as `str` does if `json` refuses it."""
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return key if isinstance(key, str) else _text(key)


def _of_object(value: object, inside: tuple[int, ...]) -> object:
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
