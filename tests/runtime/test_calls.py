"""Readers run in parallel, a writer runs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from _inf.errors import InferenceError
from _inf.runtime.calls import ReadWriteLock


class Scene:
    """A lock, a log of events, and calls that end when the test says so."""

    def __init__(self) -> None:
        self.lock = ReadWriteLock()
        self.log: list[str] = []
        self.may_end: dict[str, asyncio.Event] = {}

    async def _work(self, name: str) -> str:
        self.log.append(f"{name} begins")
        await self.may_end[name].wait()
        self.log.append(f"{name} ends")
        return name

    def _task(self, name: str, way: Any) -> asyncio.Task[str]:
        self.may_end[name] = asyncio.Event()
        return asyncio.ensure_future(way(self._work(name)))

    def call(self, name: str) -> asyncio.Task[str]:
        return self._task(name, self.lock.read)

    def change(self, name: str) -> asyncio.Task[str]:
        return self._task(name, self.lock.write)

    async def end(self, *names: str) -> None:
        for name in names:
            self.may_end[name].set()
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def test_calls_run_side_by_side_and_a_change_between_them() -> None:
    async def test() -> None:
        scene = Scene()
        scene.call("one")
        scene.call("two")
        await settled()
        scene.change("change")
        await settled()
        late = scene.call("late")
        await scene.end("one")
        assert scene.log == ["one begins", "two begins", "one ends"]
        await scene.end("two")
        assert scene.log[3:] == ["two ends", "change begins"]
        await scene.end("change", "late")
        assert scene.log[5:] == ["change ends", "late begins", "late ends"]
        assert await late == "late"

    run(test())


def test_two_changes_do_not_meet() -> None:
    async def test() -> None:
        scene = Scene()
        scene.change("one")
        await settled()
        scene.change("two")
        await scene.end("two")
        assert scene.log == ["one begins"]
        await scene.end("one")
        assert scene.log == ["one begins", "one ends", "two begins", "two ends"]

    run(test())


def test_what_a_call_asks_of_the_engine_itself_does_not_wait_for_a_change() -> None:
    async def test() -> None:
        scene = Scene()

        async def conversation() -> str:
            await asyncio.sleep(0.01)  # the change waits by now
            return await asyncio.ensure_future(scene.lock.read(answer()))

        async def answer() -> str:
            return "answered"

        talk = asyncio.ensure_future(scene.lock.read(conversation()))
        await settled()
        change = scene.change("change")
        await settled()
        assert await talk == "answered" and not change.done()
        await scene.end("change")
        assert change.done()

    run(test())


def test_change_that_a_call_asks_for_is_refused() -> None:
    async def test() -> None:
        lock = ReadWriteLock()

        async def nothing() -> None: ...

        async def call() -> None:
            await lock.write(nothing())

        with pytest.raises(InferenceError, match="between calls"):
            await lock.read(call())

    run(test())


def test_change_given_up_while_it_waits_lets_the_calls_in() -> None:
    async def test() -> None:
        scene = Scene()
        scene.call("one")
        await settled()
        change = scene.change("change")
        await settled()
        late = scene.call("late")
        await settled()
        change.cancel()
        await scene.end("late")
        assert late.done() and "change begins" not in scene.log

    run(test())


def test_change_given_up_when_it_has_begun_is_finished_before_the_next_call() -> None:
    async def test() -> None:
        scene = Scene()
        change = scene.change("change")
        await settled()
        change.cancel()
        late = scene.call("late")
        await scene.end("late")
        assert scene.log == ["change begins"] and not change.done()
        await scene.end("change")
        assert scene.log[1] == "change ends" and change.cancelled() and late.done()

    run(test())


def test_call_that_fails_or_is_given_up_leaves_the_lock_free() -> None:
    async def test() -> None:
        scene = Scene()

        async def fails() -> None:
            raise KeyError

        with pytest.raises(KeyError):
            await asyncio.ensure_future(scene.lock.read(fails()))
        given_up = scene.call("one")
        await settled()
        given_up.cancel()
        await settled()
        scene.change("change")
        await scene.end("change")
        assert scene.log[-1] == "change ends"

    run(test())
