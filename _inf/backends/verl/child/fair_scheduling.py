"""Orders the scheduler's waiting rows: the next one belongs to the call with the fewest running
rows. So a call of one row waits for a single running row to end, and every call is served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


def take_turns(
    order: Callable[..., bool], policy: Any, waiting: list[Any], running: Any = None
) -> bool:
    """SGLang's own order is kept within a call and between calls with equally many running rows.
    Uses no clock, so that all ranks of a group decide alike."""
    prefixes_matched = order(policy, waiting, running)
    rows = Counter(_call(request) for request in (running.reqs if running else ()))
    turns: dict[str, int] = {}
    for request in waiting:
        call = _call(request)
        turns[request.rid] = rows[call]
        rows[call] += 1
    waiting.sort(key=lambda request: turns[request.rid])
    return prefixes_matched


def _call(request: Any) -> str:
    """The name of a request's call, as written by `Call.rid`."""
    return str(request.rid).partition("-")[0]
