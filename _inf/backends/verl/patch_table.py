"""The row types of the two patch tables: `patches.py` (parent), `child/patches.py` (child).

A row names the attribute of verl or SGLang that is replaced, its file and version, and the reason,
so that the row can be deleted when upstream is fixed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Replace:
    """Replaces an attribute of an upstream module or class by `replacement`."""

    owner: Any
    attribute: str
    replacement: Any
    file: str
    reason: str

    def value(self) -> Any:
        """The new value of the attribute."""
        return self.replacement


class Wrap(Replace):
    """Replaces an upstream function by one that calls `replacement(original, *args, **kwargs)`."""

    def value(self) -> Any:
        original, replacement = getattr(self.owner, self.attribute), self.replacement

        @functools.wraps(original)
        def patched(*args: object, **kwargs: object) -> Any:
            return replacement(original, *args, **kwargs)

        kind = type(inspect.getattr_static(self.owner, self.attribute))
        return staticmethod(patched) if kind in (staticmethod, classmethod) else patched


def apply(table: Iterable[Replace]) -> None:
    """Apply every row of a table; called once per process."""
    for row in table:
        setattr(row.owner, row.attribute, row.value())
