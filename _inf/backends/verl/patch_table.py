"""The rows of the two tables of patches, `caller_patches.py` and `patches` in `child/setup.py`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _inf.backends.verl.child.compiled_draws import CompiledDraws
    from _inf.backends.verl.child.kernels import Kernels


@dataclasses.dataclass(frozen=True)
class Process:
    """The scheduler's process, for which a table is made. folder: the engine's. kernels,
    compiled_draws: None where PyTorch's operators compute."""

    folder: Path
    device: str = "cpu"
    pack_weights: bool = False
    kernels: Kernels | None = None
    compiled_draws: CompiledDraws | None = None
    trust_remote_code: bool = False


class Replace:
    """Replaces an attribute of an upstream module or class.

    target: "module:function" or "module:Class.method", of verl 0.6.1 or sglang 0.5.9 unless
        `reason` says so; the module is imported now. reason: what upstream does wrong, and in which
        file if that is another one. When upstream is fixed, the row can be deleted.
    """

    def __init__(self, target: str, replacement: Any, reason: str) -> None:
        self.target = target
        module, _, path = target.partition(":")
        parent, _, self.attribute = path.rpartition(".")
        self.owner = pkgutil.resolve_name(f"{module}:{parent}")
        self.replacement, self.reason = replacement, reason

    def value(self) -> Any:
        return self.replacement


class Wrap(Replace):
    """Replaces an upstream function by one that calls `replacement(original, *args, **kwargs)`."""

    def value(self) -> Any:
        original, replacement = pkgutil.resolve_name(self.target), self.replacement

        @functools.wraps(original)
        def patched(*args: object, **kwargs: object) -> object:
            return replacement(original, *args, **kwargs)

        kind = type(inspect.getattr_static(self.owner, self.attribute))
        return staticmethod(patched) if kind in (staticmethod, classmethod) else patched


def apply(table: Iterable[Replace]) -> None:
    for row in table:
        setattr(row.owner, row.attribute, row.value())
