"""Configs with one key set, and the faults that a config is refused for."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.backends.registry import read_config
from _inf.errors import ConfigError


def at(path: str, value: Any) -> dict[str, Any]:
    """Return a config with only the key `path`, a dotted path, set to `value`."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def faults(source: Any, **overrides: Any) -> list[str]:
    """Return the lines of the error message."""
    with pytest.raises(ConfigError) as caught:
        read_config(source, overrides)
    return str(caught.value).splitlines()
