"""Files of verl and SGLang, found and read without importing either."""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path


def upstream(path: str) -> Path:
    """`path` begins with the package: `verl/protocol.py`."""
    package, _, rest = path.partition("/")
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / rest


@functools.cache
def dataclass_fields(file: str, name: str) -> dict[str, str]:
    """Field names of a class and the text of their defaults."""
    tree = ast.parse(upstream(file).read_text())
    (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    lines = (n for n in found.body if isinstance(n, ast.AnnAssign))
    return {ast.unparse(n.target): ast.unparse(n.value) if n.value else "" for n in lines}
