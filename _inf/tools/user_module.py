"""Imports the caller's own modules of tools and interactions that a file names.

They are searched on Python's path, and last in the folder of the file; a module in that folder that
another one hides is an error. `sys.path` is restored afterwards.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_beside(file: str | Path, name: str) -> ModuleType:
    """Import the module `name`, which `file` names.

    Raises what its import raises, and `ImportError` if the file's folder has the module but another
    module of that name is found first or already imported.
    """
    folder = Path(file).resolve().parent
    searched = str(folder) in sys.path
    if not searched:
        sys.path.append(str(folder))
    try:
        if name.partition(".")[0] != "_inf":  # always our own package
            _refuse_hidden(folder.joinpath(*name.split(".")), name)
        return importlib.import_module(name)
    finally:
        if not searched:
            with contextlib.suppress(ValueError):  # the module has removed it
                sys.path.remove(str(folder))


def _refuse_hidden(beside: Path, name: str) -> None:
    """Refuse a module at `beside` if importing `name` would find another module."""
    for file in (beside / "__init__.py", beside.with_name(f"{beside.name}.py")):
        if file.is_file():
            spec = importlib.util.find_spec(name)
            if spec and spec.origin and Path(spec.origin).resolve() != file.resolve():
                raise ImportError(
                    f"{file} is hidden by {spec.origin}, which has the same name and is found "
                    "first; rename one of them"
                )
            return
