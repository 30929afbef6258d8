"""Whose row the scheduler takes next: calls take turns, so that a large one starves nobody.

In sglang 0.5.9 (`srt/managers/schedule_policy.py`) the waiting queue is one for all: who comes
after a batch of 1,000 rows waits for all of them, and its priorities can only say who always goes
first. Here the next row is of the call with the fewest rows running: a call of one row waits until
one running row has made room, and no call is passed over for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


def take_turns(
    order: Callable[..., bool], policy: Any, waiting: list[Any], running: Any = None
) -> bool:
    """Around `SchedulePolicy.calc_priority`, whose own order holds within a call, and between calls
    that have equally many rows running. No clock is asked: all ranks of a group decide alike."""
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
    """As `_inf.backends.verl.engine.Call.rid` writes it."""
    return str(request.rid).partition("-")[0]
