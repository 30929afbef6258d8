"""Readers run in parallel, a writer runs alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

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


def on_a_loop(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def begin() -> None:
        await asyncio.wait_for(test(Scene()), 10)

    return lambda: asyncio.run(begin())


@on_a_loop
async def test_two_changes_do_not_meet(scene: Scene) -> None:
    scene.change("one")
    await settled()
    scene.change("two")
    await scene.end("two")
    assert scene.log == ["one begins"]
    await scene.end("one")
    assert scene.log == ["one begins", "one ends", "two begins", "two ends"]


@on_a_loop
async def test_what_a_call_asks_of_the_engine_itself_does_not_wait_for_a_change(
    scene: Scene,
) -> None:
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


@on_a_loop
async def test_change_given_up_while_it_waits_lets_the_calls_in(scene: Scene) -> None:
    scene.call("one")
    await settled()
    change = scene.change("change")
    await settled()
    late = scene.call("late")
    await settled()
    change.cancel()
    await scene.end("late")
    assert late.done() and "change begins" not in scene.log


@on_a_loop
async def test_change_given_up_when_it_has_begun_is_finished_before_the_next_call(
    scene: Scene,
) -> None:
    change = scene.change("change")
    await settled()
    change.cancel()
    late = scene.call("late")
    await scene.end("late")
    assert scene.log == ["change begins"] and not change.done()
    await scene.end("change")
    assert scene.log[1] == "change ends" and change.cancelled() and late.done()
