"""A readers-writer lock for one event loop: calls run in parallel, a change of the weights alone.

A call is one coroutine, however many turns it takes. A writer waits for the running calls, and
later calls wait for the writer.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

from _inf.errors import InferenceError

T = TypeVar("T")

IN_A_CALL = "A tool cannot change the engine that waits for it; do that between calls."

# The innermost call that the current task is part of; set in the context of the call's own task.
_current_call: contextvars.ContextVar[object] = contextvars.ContextVar("inf_call_of_lock")


class ReadWriteLock:
    def __init__(self) -> None:
        self._calls: set[object] = set()  # those that run
        self._no_writer, self._no_calls = asyncio.Event(), asyncio.Event()
        self._no_writer.set()
        self._no_calls.set()
        self._one_writer = asyncio.Lock()

    async def read(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a call in its own task. A call made inside another call (by a tool) does not wait for
        the lock: it would wait for itself."""
        if _current_call.get(None) in self._calls:
            return await work
        try:
            while not self._no_writer.is_set():
                await self._no_writer.wait()
            call = object()
            self._calls.add(call)
            self._no_calls.clear()
            _current_call.set(call)
            try:
                return await work
            finally:
                self._calls.discard(call)  # also for a tool that still runs
                if not self._calls:
                    self._no_calls.set()
        finally:
            work.close()  # if it never began

    async def write(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` after the running calls have ended and before any other begins. Once started,
        `work` is finished even if its caller is gone, because a half update is unusable."""
        try:
            if _current_call.get(None) in self._calls:
                raise InferenceError(IN_A_CALL)
            async with self._one_writer:
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
                    self._no_writer.set()
        finally:
            work.close()  # if it never began
