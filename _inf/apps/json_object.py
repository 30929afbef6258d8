"""Reads the JSON text of a request or a batch line."""

from __future__ import annotations

from pydantic_core import from_json

from _inf.errors import ConfigError, shown
from _inf.types import JSON


def json_object(text: bytes) -> JSON:
    """Parse the JSON text of an object, of at most 200 levels and with integers of at most 4,300
    digits. Raises `ConfigError`, with the place, for anything else."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as failure:
        raise ConfigError(f"it is not JSON: {failure}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"it is not a JSON object: {shown(value)}")
    return value
