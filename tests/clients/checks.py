"""What the client programs share: `python PROGRAM.py FACTS.json`.

FACTS.json says where the servers are and what their engines answer without one; a program compares,
and prints as its last line which client it is, in which version.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

FACTS: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
QUESTION, GREETING, SCORED = FACTS["question"], FACTS["greeting"], FACTS["scored"]
KEY = "none-is-needed"
SERVER: dict[str, Any] = {"base_url": FACTS["base_url"], "api_key": KEY}
SERVER |= {"max_retries": 0, "timeout": 60}
CALL = ("calculator", '{"expression": "12 * 7"}')  # what the model writes
WITHIN = 1e-3  # the same token's log prob depends a little on the batch that it is computed in


class Color(BaseModel):
    """What typed answers are."""

    color: Literal["red", "green"]
    dark: bool


def session() -> str:
    """The root of a new session: it has `/v1`, and `/traces` says what was recorded."""
    return f"{FACTS['root']}/sessions/{uuid.uuid4().hex}"


def recorded(session: str) -> dict[str, Any]:
    """The only trace of a session."""
    with urllib.request.urlopen(f"{session}/traces", timeout=60) as response:
        [trace] = json.load(response)["traces"]
    return dict(trace)


def close(found: Sequence[float], expected: Sequence[float]) -> None:
    """Assert that log probs are equal but for the batch they were computed in."""
    pairs = list(zip(found, expected, strict=True))
    assert pairs and all(abs(one - other) <= WITHIN for one, other in pairs), pairs


def equal(found: object, expected: object) -> None:
    assert found == expected, f"{found!r} is not {expected!r}"


def calculator(expression: str) -> str:
    """The calculator.

    Args:
        expression: The expression.
    """
    calls.append(expression)
    return {"12 * 7": "84"}[expression]


calls: list[str] = []  # the expressions that the calculator was given


def called_once() -> None:
    """Assert that the calculator was called with the question's expression since the last time."""
    equal(calls, ["12 * 7"])
    calls.clear()


def seen(client: str) -> None:
    """Report the client, and that it was seen to do all that a program asserts."""
    print(client, importlib.metadata.version(client))
