"""Ends calls early: by hand, after a timeout, or with the async code that awaits them.

A call's work runs on the engine's thread, and its caller waits elsewhere. Both have the call's
`CancelToken`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

TIMED_OUT = "timeout: the call took longer than its timeout; it was aborted."
# Calls of async code that may be under way at once; each holds a thread that only waits.
ASYNC_CALLS = 512


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
        """Make `work` the work that `cancel` cancels."""
        self._work = work
        if self._cancelled:
            work.cancel()

    def cancel(self) -> None:
        """End the call; may be called from any thread."""
        self._cancelled = True
        if self._work is not None:
            self._work.cancel()


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
