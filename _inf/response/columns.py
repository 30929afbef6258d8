"""Builds a column of a table as a numpy array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def column(values: Sequence[Any]) -> Any:
    """Return a one-dimensional numpy array of Python objects of any lengths."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
