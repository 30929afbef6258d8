"""The calls on one engine: ends them early, and lets changes of the weights wait for them.

A call's work runs on the engine's thread, and its caller waits elsewhere. Both have the call's
`CancelToken`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from _inf.errors import InferenceError

T = TypeVar("T")

TIMED_OUT = "timeout: the call took longer than its timeout; it was aborted."
IN_A_CALL = "A tool cannot change the engine that waits for it; do that between calls."
# Calls of async code that may be under way at once; each holds a thread that only waits.
ASYNC_CALLS = 512

# The innermost call that the current task is part of; set in the context of the call's own task.
current_call: contextvars.ContextVar[object] = contextvars.ContextVar("inf_call", default=None)


class CancelToken:
    """Cancels one call, by hand or after its timeout."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._work: concurrent.futures.Future[Any] | None = None
        self._cancelled = False

    def expire_in(self, timeout: float | None) -> None:
        """End the call `timeout` seconds from now; None means never."""
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def seconds_left(self) -> float | None:
        """Seconds until the timeout; None without a timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def admit(self, work: concurrent.futures.Future[Any]) -> None:
        """Make `work` the work that `cancel` cancels, until it ends: its task has the call in its
        context, which only the garbage collection could free if the call had the work."""
        self._work = work
        work.add_done_callback(self._ended)
        if self._cancelled:
            work.cancel()

    def _ended(self, work: object) -> None:
        if self._work is work:
            self._work = None

    def cancel(self) -> None:
        """End the call; may be called from any thread."""
        self._cancelled = True
        if (work := self._work) is not None:
            work.cancel()


class AwaitedCalls:
    """Runs calls that wait, on threads, for async code."""

    def __init__(self) -> None:
        self._threads = concurrent.futures.ThreadPoolExecutor(ASYNC_CALLS, "inf-call")

    async def run(self, call: Callable[[CancelToken], T]) -> T:
        """Await `call(cancel)`, in a copy of the caller's context; if this is cancelled, so is the
        call."""
        cancel, context = CancelToken(), contextvars.copy_context()
        future = self._threads.submit(context.run, call, cancel)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancel.cancel()
            raise


class ReadWriteLock:
    """For one event loop: calls run in parallel, a change of the weights alone.

    A call is one coroutine, however many turns it takes. A writer waits for the running calls, and
    later calls wait for the writer.
    paused: later calls wait until it is False again. frozen: the running calls stand still, so a
    writer need not wait for them. Both are set inside of `changing`.
    """

    def __init__(self) -> None:
        self.paused = self.frozen = False
        self._calls: set[object] = set()  # those that run
        self._no_writer, self._no_calls = asyncio.Event(), asyncio.Event()
        self._no_writer.set()
        self._no_calls.set()
        self._one_writer = asyncio.Lock()

    async def read(self, work: Coroutine[object, None, T]) -> T:
        """Run a call in its own task. A call made inside another call (by a tool) does not wait for
        the lock: it would wait for itself."""
        if current_call.get() in self._calls:
            return await work
        try:
            while not self._no_writer.is_set():
                await self._no_writer.wait()
            call = object()
            self._calls.add(call)
            self._no_calls.clear()
            current_call.set(call)
            try:
                return await work
            finally:
                self._calls.discard(call)  # also for a tool that still runs
                if not self._calls:
                    self._no_calls.set()
        finally:
            work.close()  # if it never began

    async def write(self, work: Coroutine[object, None, T]) -> T:
        """Run `work` after the running calls have ended and before any other begins."""
        try:
            async with self.changing():
                if not self.frozen:
                    await self.calls_ended()
                return await finished(work)
        finally:
            work.close()  # if it never began

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """One writer at a time, during which no call begins."""
        if current_call.get() in self._calls:
            raise InferenceError(IN_A_CALL)
        async with self._one_writer:
            self._no_writer.clear()
            try:
                yield
            finally:
                if not self.paused:
                    self._no_writer.set()

    async def calls_ended(self) -> None:
        """Wait until no call runs; used inside of `changing`."""
        await self._no_calls.wait()


async def finished(work: Coroutine[object, None, T]) -> T:
    """Once started, `work` is finished even if its caller is gone: a half update is unusable."""
    begun = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(begun)
    except asyncio.CancelledError:
        await asyncio.wait({begun})
        raise
