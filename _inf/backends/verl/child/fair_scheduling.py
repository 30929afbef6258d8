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


def in_turns(order: Callable[..., bool]) -> Callable[..., bool]:
    """Around `SchedulePolicy.calc_priority`, whose own order holds within a call, and between calls
    that have equally many rows running. No clock is asked: all ranks of a group decide alike."""

    def guarded(policy: Any, waiting: list[Any], running: Any = None) -> bool:
        prefixes_matched = order(policy, waiting, running)
        rows = Counter(map(_call, [] if running is None else running.reqs))
        turns: dict[str, int] = {}
        for req in waiting:
            call = _call(req)
            turns[req.rid] = rows[call]
            rows[call] += 1
        waiting.sort(key=lambda req: turns[req.rid])
        return prefixes_matched

    return guarded


def _call(req: Any) -> str:
    """As `_inf.backends.verl.engine.Call.rid` writes it."""
    return str(req.rid).partition("-")[0]
