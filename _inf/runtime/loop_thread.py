"""A thread with an event loop of its own, for coroutines of the user's, which may block it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class LoopThread:
    """Started by the first `submit`. It ends with `stop`, or with the process."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on it."""
        return threading.current_thread() is self._thread

    def submit(self, work: Coroutine[object, None, T]) -> concurrent.futures.Future[T]:
        """Run `work` there, in a copy of the caller's context; to cancel the future cancels it."""
        with self._lock:
            if self._loop is None:
                loop, self._stopping = asyncio.new_event_loop(), threading.Event()
                self._thread = threading.Thread(
                    target=_run, args=(loop, self._stopping), name=self._name, daemon=True
                )
                self._thread.start()
                self._loop = loop
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel what runs there, and let the thread end after it; safe to call twice."""
        with self._lock:
            loop, self._loop = self._loop, None
            self._stopping.set()
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)


def _run(loop: asyncio.AbstractEventLoop, stopping: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    while not stopping.is_set():
        # A task that calls sys.exit(), or loop.stop(), ends this; other calls have tasks there.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
    with contextlib.suppress(SystemExit, KeyboardInterrupt):
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
