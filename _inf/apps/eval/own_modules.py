"""Finds the modules of the user's own that a Python file imports, without importing them.

In: a file. Out: a digest of its code and of theirs, and so on. Installed packages and the standard
library are left out. An import whose name is computed while the code runs is not seen.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

INSTALLED = ("site-packages", "dist-packages")  # names of their folders, in any environment
STANDARD = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
OURS = ("inf", "_inf")


def is_own(name: str, file: str | None) -> bool:
    """Whether a module is the user's: neither installed, nor of Python, nor ours."""
    if not file or name.partition(".")[0] in OURS:
        return False
    path = Path(file).resolve()
    installed = any(part in INSTALLED for part in path.parts)
    return not installed and not any(map(path.is_relative_to, STANDARD))


def own_module(name: str) -> Path | None:
    """Return the file of a module of the user's own, imported or not."""
    if name == "__main__":
        return None
    if (module := sys.modules.get(name)) is None:
        return dict(_own_modules(name, sys.path)).get(name)
    file = getattr(module, "__file__", None)
    return Path(file) if file and is_own(name, file) and Path(file).is_file() else None


def own_files(file: Path, name: str = "") -> dict[Path, str]:
    """Return the file and those of the user's modules that it imports, each with the digest of its
    code. name: of the file's module, for its relative imports."""
    path = [*sys.path, str(file.resolve().parent)]
    found: dict[Path, str] = {}
    waiting = [(name, file.resolve())]
    while waiting:
        module, source = waiting.pop()
        if source not in found:
            tree = _tree(source)
            code = source.read_bytes() if tree is None else ast.dump(tree).encode()
            found[source] = hashlib.sha256(code).hexdigest()
            package = module if source.name == "__init__.py" else module.rpartition(".")[0]
            for imported in _imports(tree, package) if tree else ():
                waiting += _own_modules(imported, path)
    return found


def _tree(file: Path) -> ast.Module | None:
    if file.suffix != ".py":
        return None
    with contextlib.suppress(SyntaxError, ValueError):  # its import says what is wrong
        return ast.parse(file.read_bytes())
    return None


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """The names that may be modules, those of `from x import name` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            with contextlib.suppress(ImportError):  # a relative import without a package
                base = importlib.util.resolve_name(base, package)
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _own_modules(name: str, path: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The module of this name and the packages around it, each as its name and its file."""
    parts, where = name.split("."), path
    for end in range(1, len(parts) + 1):
        within = ".".join(parts[:end])
        spec = None if end == 1 and within in sys.stdlib_module_names else _spec(within, where, end)
        if spec is None or (spec.origin and not is_own(within, spec.origin)):
            return
        if spec.origin:
            yield within, Path(spec.origin).resolve()
        if spec.submodule_search_locations is None:
            return
        where = list(spec.submodule_search_locations)


def _spec(name: str, path: Sequence[str], depth: int) -> ModuleSpec | None:
    if (spec := PathFinder.find_spec(name, path)) or depth > 1:
        return spec
    for finder in sys.meta_path:  # that of an editable installation
        if finder is not PathFinder and (spec := finder.find_spec(name, None)):
            return spec
    return None
