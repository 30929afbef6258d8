"""Configs with one key set, and the faults that a config is refused for."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.config import load_config
from _inf.errors import ConfigError


def at(path: str, value: Any) -> dict[str, Any]:
    """A mapping that holds `value` at the dotted `path`."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def faults(source: Any, **overrides: Any) -> list[str]:
    """The lines of the refusal."""
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return str(caught.value).splitlines()
