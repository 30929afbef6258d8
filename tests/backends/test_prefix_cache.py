"""Flushes of a scheduler that refuses them; of SGLang's own in `tests/engine/`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from _inf.backends.verl import changes
from _inf.backends.verl.changes import PrefixCache
from inf import InferenceError

pytestmark = pytest.mark.verl


class Scheduler:
    """Refuses so many flushes."""

    def __init__(self, refusals: int) -> None:
        self.asked, self.refusals = 0, refusals

    async def flush(self) -> SimpleNamespace:
        self.asked += 1
        return SimpleNamespace(success=self.asked > self.refusals)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(changes, "FIRST_PAUSE", 0.0)


def test_refused_flush_is_tried_again_until_it_is_an_error_or_left_to_other_calls():
    scheduler = Scheduler(refusals=10**9)
    others = iter([False, False, True])
    asyncio.run(PrefixCache(scheduler.flush).empty(others=lambda: next(others)))
    assert scheduler.asked == 3
    scheduler.refusals = 5
    asyncio.run(PrefixCache(scheduler.flush).empty())
    assert scheduler.asked == 6
    scheduler.refusals = 10**9
    with pytest.raises(InferenceError, match="refused .* to empty its prefix cache"):
        asyncio.run(PrefixCache(scheduler.flush).empty())
    assert scheduler.asked == 6 + changes.MAX_REFUSALS
