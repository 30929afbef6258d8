"""Writes values of Python and numpy as JSON that is read back the same, or refuses them."""

from __future__ import annotations

import math
from typing import Any

from _inf.errors import ConfigError, shown

ARRAY = "__ndarray__"  # the key of an array's or a numpy number's values


def as_json(value: Any, where: str) -> Any:
    """Return the JSON value. Raises `ConfigError` for what JSON cannot keep; `where` begins it."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        values = [as_json(each, where) for each in array.ravel().tolist()]
        return {ARRAY: values, "dtype": str(array.dtype), "shape": list(array.shape)}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [as_json(each, where) for each in value]
    if type(value) is dict and ARRAY not in value and all(type(key) is str for key in value):
        return {key: as_json(each, where) for key, each in value.items()}
    raise ConfigError(
        f"{where}: {shown(value)} cannot be kept as JSON and read back the same; use numbers that "
        "are finite, texts, lists, dicts with text keys, or numpy arrays of them."
    )


def from_json(value: Any) -> Any:
    """Return the value that `as_json` was given."""
    import numpy as np

    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        array = np.empty(len(value[ARRAY]), dtype=np.dtype(value["dtype"]))
        for place, each in enumerate(value[ARRAY]):
            array[place] = from_json(each)
        return array.reshape(value["shape"])[()]
    return {key: from_json(each) for key, each in value.items()}
