"""Files of verl and SGLang, found without importing either."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def upstream(path: str) -> Path:
    """`path` begins with the package: `verl/protocol.py`."""
    package, _, rest = path.partition("/")
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / rest
