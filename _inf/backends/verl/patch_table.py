"""A row in the tables of patches: `patches.py` has the parent's, `child/patches.py` the child's.

A row says what of verl's or SGLang's is exchanged, in which file and version it is, and why, so
that it can be deleted on the day upstream is fixed. Knows nothing of what is exchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Replace:
    """An attribute of an upstream module or class, exchanged for `replacement`."""

    owner: Any
    attribute: str
    replacement: Any
    file: str
    reason: str

    def value(self) -> Any:
        """What the attribute becomes."""
        return self.replacement


class Wrap(Replace):
    """A function of upstream's, exchanged for one that calls `replacement` with upstream's own
    function first, then with the arguments."""

    def value(self) -> Any:
        original, replacement = getattr(self.owner, self.attribute), self.replacement

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        kind = type(inspect.getattr_static(self.owner, self.attribute))
        return staticmethod(patched) if kind in (staticmethod, classmethod) else patched


def apply(table: Iterable[Replace]) -> None:
    """Put every row of a table in place; once a process."""
    for row in table:
        setattr(row.owner, row.attribute, row.value())
