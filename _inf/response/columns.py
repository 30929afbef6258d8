"""One column of a table of rows, as numpy holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def column(values: Sequence[Any]) -> Any:
    """A one-dimensional numpy array of Python objects, whatever their lengths."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
