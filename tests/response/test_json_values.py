"""What user code returns becomes JSON, whatever it is."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from _inf.response.json_values import json_value


class Speechless:
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


def contains_itself() -> dict[str, Any]:
    value = {"a": []}
    value["a"] += [value, value]
    return value


def nested(levels: int) -> Any:
    value = 1
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (
            {np.int64(3): 1, (1, 2): 2, None: 3, True: 4},
            {"3": 1, "(1, 2)": 2, "null": 3, "true": 4},
        ),
        ([math.inf, -math.inf, math.nan, 1.5], [None, None, None, 1.5]),
        (np.array([{(1,): math.nan}], dtype=object), [{"(1,)": None}]),
        (10**5000, "a int"),
        (b"\xff", "b'\\xff'"),
        (Speechless(), "a Speechless"),
        (contains_itself(), {"a": ["(it contains itself)"] * 2}),
    ],
    ids=range(7),
)
def test_any_value_is_json(value, plain):
    found = json_value(value)
    assert found == plain
    assert json.loads(json.dumps(found, allow_nan=False)) == plain
    assert "levels deep" in json.dumps(json_value(nested(900)))
