"""Interrupts a call at one of its awaits, as Ctrl-C and a cancelled task do."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from typing import Any

from inf import InferenceEngine


def interrupted(engine: InferenceEngine, place: int, call: Callable[[], object]) -> bool:
    """Make a call, and cancel it on the engine's thread where it waits for the `place`-th time,
    from 1 on. Whether it waited so often."""
    waits = 0

    @types.coroutine
    def stepped(work: Any) -> Generator[Any, Any, Any]:
        nonlocal waits
        step, value = work.send, None
        while True:
            try:
                waited = step(value)
            except StopIteration as end:
                return end.value
            waits += 1
            if waits == place:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                step, value = work.send, (yield waited)
            except BaseException as failure:
                step, value = work.throw, failure

    with _instead(engine, stepped), contextlib.suppress(CancelledError):
        call()
    return waits >= place


@contextlib.contextmanager
def _instead(engine: InferenceEngine, stepped: Callable[[Any], Any]) -> Iterator[None]:
    host = engine._backend.host
    or_death = host.or_death

    def stepped_or_death(work: Any) -> Any:
        async def run() -> Any:
            return await stepped(work)

        return or_death(run())

    host.or_death = stepped_or_death
    try:
        yield
    finally:
        del host.or_death
