"""Reads the JSON text of a request or a batch line; names the field that holds no usable value."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import from_json

from _inf.errors import ConfigError, shown

MAX_DIGITS = 4300  # Python's and pydantic's
DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
LONG_EXPONENT, LONG_MANTISSA = re.compile(rb"[eE]\+?000"), b"0" * 200
MAX_NESTING = 200  # pydantic's, with the object itself
UNUSABLE = (
    f"it has a number that is not finite, or of more than {MAX_DIGITS} digits, a lone "
    f"surrogate, or is nested more than {MAX_NESTING} deep"
)


def json_object(text: bytes) -> dict[str, Any]:
    """Parse the JSON text of an object. Raises `ConfigError` for anything else; its `key` is the
    field whose value is at fault."""
    try:
        value = _parsed(text)
    except (ValueError, RecursionError) as failure:
        raise _unreadable(text, failure) from None
    if not isinstance(value, dict):
        raise ConfigError(f"it is not a JSON object: {shown(value)}")
    return value


def _parsed(text: bytes) -> Any:
    value = from_json(text, allow_inf_nan=False)
    if _may_overflow(text):  # else it takes as long as parsing, while no other thread runs
        json.dumps(value, allow_nan=False)  # raises for 1e400, which JSON cannot represent
    return value


def _may_overflow(text: bytes) -> bool:
    """Whether a number in the text may be too large for a float, which is about 1e308: it has an
    exponent of three digits or more, or so many digits that one of two is enough."""
    alike = text.translate(DIGITS)
    return LONG_EXPONENT.search(alike) is not None or LONG_MANTISSA in alike


def _unreadable(text: bytes, failure: Exception) -> ConfigError:
    """The error about the first field whose value only Python's parser, which takes more, reads."""
    try:
        fields = json.loads(text, parse_int=float).items()
    except (ValueError, RecursionError, AttributeError):
        fields = ()
    for name, inside in fields:
        try:
            _parsed(json.dumps({"": inside}).encode())
        except (ValueError, RecursionError):
            if name.isprintable():
                return ConfigError.of(name, UNUSABLE)
    return ConfigError(f"it is not JSON: {failure}")
