"""Who may go to the engine, and when: calls side by side, a change of the engine's weights alone.

In: coroutines, on the engine's event loop; a call is one coroutine, however many turns it takes.
Calls that are inside finish, those that come later wait. It knows nothing of what a call does.
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
    """Used on one event loop."""

    def __init__(self) -> None:
        self._calls = 0
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._alone = asyncio.Lock()

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call, in a task of its own. What a call itself asks of the engine (a tool may) is
        let through: to wait would be to wait for itself."""
        if self._lets_through():
            return await work
        try:
            while not self._open.is_set():
                await self._open.wait()
        except BaseException:
            work.close()
            raise
        self._calls += 1
        self._empty.clear()
        cancel = _Pass(self)
        _inside.set(cancel)  # in the context of this call's task, which ends with it
        try:
            return await work
        finally:
            cancel.valid = False  # for a tool that was left behind
            self._calls -= 1
            if not self._calls:
                self._empty.set()

    def _lets_through(self) -> bool:
        shown = _inside.get()
        return shown is not None and shown.lock is self and shown.valid

    async def write(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` when the calls inside have ended, and before any other is let in. Once begun
        it is finished, also where its caller has gone: half of it would be neither old nor new."""
        try:
            if self._lets_through():
                raise InferenceError(
                    "A tool cannot change the engine that waits for it; do it between calls."
                )
            await self._alone.acquire()
        except BaseException:
            work.close()
            raise
        self._open.clear()
        try:
            await self._empty.wait()
            begun = asyncio.ensure_future(work)
            try:
                return await asyncio.shield(begun)
            except asyncio.CancelledError:
                await asyncio.wait({begun})
                raise
        finally:
            work.close()
            self._open.set()
            self._alone.release()


@dataclasses.dataclass
class _Pass:
    """What a call that is inside shows at the lock, and whether it still is."""

    lock: ReadWriteLock
    valid: bool = True


_inside: contextvars.ContextVar[_Pass | None] = contextvars.ContextVar("inf_lock", default=None)
