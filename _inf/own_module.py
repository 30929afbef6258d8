"""Modules of the caller's own that a file names: tools' and interactions' classes.

They are looked for where Python looks, and last in the folder of the file itself. `sys.path` is as
it was afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType


def import_beside(file: str | Path, name: str) -> ModuleType:
    """The module `name`, which `file` names.

    Raises what its import raises; `ImportError` where another folder's module of that name has been
    imported, and would be taken for it.
    """
    folder = Path(file).resolve().parent
    with _searched_last(str(folder)):
        loaded = getattr(sys.modules.get(name), "__file__", None)
        found = _origin(name) if loaded is not None else None
        if found and found.is_relative_to(folder) and found != Path(loaded or "").resolve():
            raise ImportError(
                f"{found} is hidden by {loaded}, imported under the same name; rename one of them"
            )
        return importlib.import_module(name)


@contextlib.contextmanager
def _searched_last(folder: str) -> Iterator[None]:
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the module has removed it
            sys.path.remove(folder)


def _origin(name: str) -> Path | None:
    """The file that an import would read, had nobody imported it before."""
    places, spec = None, None
    for end in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:end]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return Path(spec.origin).resolve() if spec and spec.origin else None
