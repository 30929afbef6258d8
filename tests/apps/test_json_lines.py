"""JSON that every reader takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from _inf.apps.json_lines import json_text


@pytest.mark.parametrize("value", [[0.5, None, "é"], {"a": {"b": 1e300}}])
def test_finite_values_are_written_as_they_are(value: Any) -> None:
    assert json_text(value) == json.dumps(value)


def test_numbers_that_json_does_not_have_become_null() -> None:
    value = {"a": float("nan"), "b": [float("inf"), -float("inf"), "NaN", 1.5], "c": {1}}
    text = json_text(value, default=list, indent=1)
    assert json.loads(text) == {"a": None, "b": [None, None, "NaN", 1.5], "c": [1]}
    assert "Infinity" not in text
