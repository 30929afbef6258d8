"""Hands the rows of streams from an engine's thread to their readers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from _inf.types import RequestOutput


class Newest:
    """Hands the newest row of a stream from the engine's thread to its reader. Each row has all
    tokens so far, so a reader who lags needs none of those before.

    wake: called when a row comes, or the end, and the reader has taken what came before.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake, self._waking = wake, False
        self._row: deque[RequestOutput] = deque(maxlen=1)
        self._no_more = False
        self.ended = False  # all was taken

    def put(self, row: RequestOutput | None) -> None:
        """Take the place of the row before; None: no more come."""
        if row is None:
            self._no_more = True
        else:
            self._row.append(row)
        if not self._waking:
            self._waking = True
            self._wake()

    def take(self) -> RequestOutput | None:
        """The newest row; None: it was taken before."""
        self._waking = False  # before it looks: what comes now wakes it again
        self.ended = self._no_more
        return self._row.pop() if self._row else None


class Deliveries:
    """Wakes the streams of one event loop from an engine's thread, all at once for what has come
    since: a step has a row for each stream, and each wake-up of the loop takes the interpreter from
    the engine's thread."""

    _of_loops: ClassVar[weakref.WeakKeyDictionary[object, Deliveries]] = weakref.WeakKeyDictionary()
    _making: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def to(cls, loop: asyncio.AbstractEventLoop) -> Deliveries:
        with cls._making:
            if loop not in cls._of_loops:
                cls._of_loops[loop] = cls(loop)
            return cls._of_loops[loop]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.proxy(loop)
        self._wakes: deque[asyncio.Queue[None]] = deque()
        self._waking = False

    def wake(self, stream: asyncio.Queue[None]) -> None:
        """May be called on any thread."""
        self._wakes.append(stream)
        if not self._waking:
            self._waking = True
            with contextlib.suppress(RuntimeError, ReferenceError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._waking = False  # before they are taken: one that comes now wakes it again
        while self._wakes:
            self._wakes.popleft().put_nowait(None)
