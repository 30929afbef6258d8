"""Imports modules of the caller's own that a file names: tools' and interactions' classes.

They are looked for where Python looks, and last in the folder of the file itself; one that lies
there and would not be found is an error. `sys.path` is as it was afterwards.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_beside(file: str | Path, name: str) -> ModuleType:
    """The module `name`, which `file` names.

    Raises what its import raises; `ImportError` where it lies beside the file and another one of
    that name, found first or imported before, would be taken for it.
    """
    folder = Path(file).resolve().parent
    searched = str(folder) in sys.path
    if not searched:
        sys.path.append(str(folder))
    try:
        if name.partition(".")[0] != "_inf":  # ours, also where a checkout lies beside the file
            _refuse_hidden(folder.joinpath(*name.split(".")), name)
        return importlib.import_module(name)
    finally:
        if not searched:
            with contextlib.suppress(ValueError):  # the module has removed it
                sys.path.remove(str(folder))


def _refuse_hidden(beside: Path, name: str) -> None:
    """Refuse a module that lies at `beside` where `name` means another one."""
    for file in (beside / "__init__.py", beside.with_name(f"{beside.name}.py")):
        if file.is_file():
            spec = importlib.util.find_spec(name)
            if spec and spec.origin and Path(spec.origin).resolve() != file.resolve():
                raise ImportError(
                    f"{file} is hidden by {spec.origin}, which has the same name and goes first; "
                    "rename one of them"
                )
            return
