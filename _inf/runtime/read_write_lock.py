"""A readers-writer lock for one event loop: calls run in parallel, a change of the weights alone.

In: coroutines; a call is one coroutine, however many turns it takes. A writer waits for the running
calls, and later calls wait for the writer. The lock knows nothing of what a call does.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
from collections.abc import Coroutine
from typing import Any, TypeVar

from _inf.errors import InferenceError

T = TypeVar("T")


class ReadWriteLock:
    """The lock; used on one event loop."""

    def __init__(self) -> None:
        self._calls = 0
        self._no_writer, self._no_calls = asyncio.Event(), asyncio.Event()
        self._no_writer.set()
        self._no_calls.set()
        self._one_writer = asyncio.Lock()

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call in its own task. A call made inside another call (by a tool) does not wait for
        the lock: it would wait for itself."""
        if self._held_here():
            return await work
        try:
            while not self._no_writer.is_set():
                await self._no_writer.wait()
        except BaseException:
            work.close()
            raise
        self._calls += 1
        self._no_calls.clear()
        call = _Call(self)
        _current_call.set(call)  # in the context of this call's task, which ends with it
        try:
            return await work
        finally:
            call.runs = False  # for a tool that still runs
            self._calls -= 1
            if not self._calls:
                self._no_calls.set()

    def _held_here(self) -> bool:
        call = _current_call.get()
        return call is not None and call.lock is self and call.runs

    async def write(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` after the running calls have ended and before any other begins. Once started,
        `work` is finished even if its caller is gone, because a half update is unusable."""
        try:
            if self._held_here():
                raise InferenceError(
                    "A tool cannot change the engine that waits for it; do that between calls."
                )
            await self._one_writer.acquire()
        except BaseException:
            work.close()
            raise
        self._no_writer.clear()
        try:
            await self._no_calls.wait()
            begun = asyncio.ensure_future(work)
            try:
                return await asyncio.shield(begun)
            except asyncio.CancelledError:
                await asyncio.wait({begun})
                raise
        finally:
            work.close()
            self._no_writer.set()
            self._one_writer.release()


@dataclasses.dataclass
class _Call:
    """A call that holds the lock, stored in the context of its tasks."""

    lock: ReadWriteLock
    runs: bool = True


_current_call: contextvars.ContextVar[_Call | None] = contextvars.ContextVar(
    "inf_lock", default=None
)
