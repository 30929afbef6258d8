"""Modules of the caller's own that a file names: tools' and interactions' classes.

They are looked for where Python looks, and last in the folder of the file itself; one that lies
there and would not be found is an error. `sys.path` is as it was afterwards.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


def import_beside(file: str | Path, name: str) -> ModuleType:
    """The module `name`, which `file` names.

    Raises what its import raises; `ImportError` where it lies beside the file and another one of
    that name, found first or imported before, would be taken for it.
    """
    if (
        name.partition(".")[0] == "_inf"
    ):  # the library's, also where a checkout lies beside the file
        return importlib.import_module(name)
    folder = Path(file).resolve().parent
    with _searched_last(str(folder)):
        part = folder.joinpath(*name.split("."))
        for beside in (part / "__init__.py", part.with_name(f"{part.name}.py")):
            if beside.is_file():
                found = importlib.util.find_spec(name)
                origin = found.origin if found else None
                if origin and Path(origin).resolve() != beside.resolve():
                    raise ImportError(
                        f"{beside} is hidden by {origin}, which has the same name and goes first; "
                        "rename one of them"
                    )
                break
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
