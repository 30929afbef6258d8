"""What is wrong with a config, by key path, gathered so that one `ConfigError` can say it all."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from _inf.errors import ConfigError


class Faults:
    """The first fault found at a path stands; later ones, there and below, follow from it."""

    def __init__(self) -> None:
        self._by_path: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def note(self, path: str, fault: str) -> None:
        if not any(f"{path}.".startswith((f"{known}.", f"{known}[")) for known in self._by_path):
            self._by_path[path] = fault

    def error(self, order: Iterable[str]) -> ConfigError:
        """One line a fault, in the order of the config's keys."""
        place = {path: index for index, path in enumerate(order)}
        faults = sorted(self._by_path.items(), key=lambda item: place.get(item[0], -1))
        return ConfigError("\n".join(f"{path}: {fault}" for path, fault in faults))


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def shown(value: Any) -> str:
    """A value about as YAML would write it, kept short."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except Exception:  # an int of over 4300 digits, or a __repr__ of the caller's
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
