"""Readers run in parallel, a writer runs alone."""

from __future__ import annotations

import asyncio

import pytest

from _inf.runtime.calls import ReadWriteLock


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def played(lock: ReadWriteLock, *steps: str) -> list[str]:
    """What happens: a step begins a call or a change, lets its work end, or gives it up."""
    log: list[str] = []
    may_end, tasks = dict[str, asyncio.Event](), dict[str, asyncio.Future[None]]()

    async def work(name: str) -> None:
        log.append(f"{name} begins")
        await may_end[name].wait()
        log.append(f"{name} ends")

    for what, name in map(str.split, steps):
        if what == "end":
            may_end[name].set()
        elif what == "leave":
            tasks[name].cancel()
        else:
            may_end[name] = asyncio.Event()
            way = lock.read if what == "call" else lock.write
            tasks[name] = asyncio.ensure_future(way(work(name)))
        await settled()
    return log


@pytest.mark.parametrize(
    ("steps", "happens"),
    [
        # Two changes do not meet.
        (
            ["change one", "change two", "end two", "end one"],
            ["one begins", "one ends", "two begins", "two ends"],
        ),
        # One that is given up while it waits lets the calls in.
        (
            ["call one", "change new", "call late", "leave new", "end late"],
            ["one begins", "late begins", "late ends"],
        ),
        # One that is given up when it has begun is finished before the next call.
        (
            ["change new", "leave new", "call late", "end late", "end new"],
            ["new begins", "new ends", "late begins", "late ends"],
        ),
    ],
)
def test_calls_and_changes_take_turns(steps, happens):
    async def play() -> list[str]:
        return await asyncio.wait_for(played(ReadWriteLock(), *steps), 10)

    assert asyncio.run(play()) == happens


def test_what_a_call_asks_of_the_engine_itself_does_not_wait_for_a_change():
    async def play() -> None:
        lock, goes_on = ReadWriteLock(), asyncio.Event()

        async def conversation() -> None:
            await goes_on.wait()
            await asyncio.ensure_future(lock.read(settled()))

        talk = asyncio.ensure_future(lock.read(conversation()))
        await settled()
        change = asyncio.ensure_future(lock.write(asyncio.sleep(0)))
        await settled()
        goes_on.set()
        await talk
        await change

    asyncio.run(asyncio.wait_for(play(), 10))
