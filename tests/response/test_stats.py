"""Totals since an engine's start, with a clock that the test controls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from _inf.parts.continued import Continued
from _inf.response import stats
from _inf.response.stats import Stats
from _inf.types import RequestOutput, SamplingParams

COUNTS = ("calls", "requests", "prompt_tokens", "completion_tokens", "cached_tokens")
COUNTS += ("generation_cache_hits", "restarts")
PLAIN = [SamplingParams(max_tokens=9)] * 2
ZERO = dict.fromkeys(COUNTS, 0) | {"busy_seconds": 0.0, "tokens_per_second": 0.0}


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(stats, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def row(prompt: int, completion: int, cached: int = 0) -> RequestOutput:
    return RequestOutput([], [], "stop", None, prompt, completion, cached)


def test_rows_add_up_and_the_speed_is_generated_tokens_over_busy_time(clock):
    totals = Stats()
    assert totals.snapshot() == ZERO
    for call in range(2):
        with totals.call():
            clock.now += 2
            assert totals.snapshot()["busy_seconds"] == 2.0 * call + 2  # up to now
        clock.now += 100  # idle time is nobody's
        totals.add_rows([row(10, 6, 4), row(3, 1)], PLAIN)
    totals.add_restart()
    said = {"calls": 2, "requests": 4, "prompt_tokens": 26, "completion_tokens": 14}
    said |= {"cached_tokens": 8, "restarts": 1, "busy_seconds": 4.0, "tokens_per_second": 3.5}
    assert totals.snapshot() == ZERO | said


def test_answers_from_memory_are_rows_that_add_nothing_to_the_speed(clock):
    totals = Stats()
    with totals.call():
        clock.now += 2
    totals.add_cache_hits([row(10, 6)])
    totals.add_rows([row(10, 6), row(3, 8)], PLAIN)
    said = totals.snapshot()
    assert (said["requests"], said["completion_tokens"]) == (2, 14)
    assert (said["generation_cache_hits"], said["tokens_per_second"]) == (1, 4.0)


def test_first_parts_of_rows_that_are_continued_are_not_counted_again(clock):
    totals = Stats()
    with totals.call():
        clock.now += 2
    totals.add_rows([row(10, 6), row(3, 4)], PLAIN)
    parts = [(Continued(row(10, 6)),), (Continued(row(3, 4)),), ()]
    params = [SamplingParams(max_tokens=9, parts=each) for each in parts]
    totals.add_rows([row(10, 9), row(3, 0), row(5, 1)], params)  # one failed
    said = totals.snapshot()
    assert (said["completion_tokens"], said["tokens_per_second"]) == (14, 7.0)


def test_time_counts_once_however_many_calls_overlap(clock):
    totals = Stats()
    first, second, third = totals.call(), totals.call(), totals.call()
    first.__enter__()
    clock.now += 1
    second.__enter__()
    clock.now += 1
    first.__exit__(None, None, None)
    clock.now += 1
    second.__exit__(None, None, None)
    clock.now += 50
    with pytest.raises(KeyError), third:
        clock.now += 1
        raise KeyError
    clock.now += 50
    assert totals.snapshot()["busy_seconds"] == 4.0 and totals.snapshot()["calls"] == 3
