"""Limits how many requests are under way, by what the server answers; used on one event loop.

A refusal for load (429 or 5xx) halves the limit, and as many successes as the limit raise it by
one, up to the configured number.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
from collections.abc import AsyncIterator

import httpx

TOO_MANY, SERVER_ERRORS = 429, 500
CUTS = "inf_cuts"  # of a request: how often the limit had been halved when it was sent

# The call that the requests of this context belong to.
current_call: contextvars.ContextVar[object] = contextvars.ContextVar("inf_call", default=None)


class Pace:
    """The limit, and the requests that wait. Waiting calls take turns, whatever their size."""

    def __init__(self, most: int) -> None:
        self.limit = most
        self._most = most
        self._running = 0
        self._successes = 0
        self._cuts = 0
        self._waiting: dict[object, collections.deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, call: object) -> AsyncIterator[None]:
        """Wait until a request of `call` may be under way, and count it."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(call, collections.deque()).append(admitted)
        self._admit()
        try:
            await admitted
            yield
        finally:
            if admitted.done() and not admitted.cancelled():
                self._running -= 1
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._running < self.limit:
            call = next(iter(self._waiting))
            waiting = self._waiting.pop(call)
            admitted = waiting.popleft()
            if waiting:
                self._waiting[call] = waiting  # behind the other calls
            if not admitted.done():  # its row may have been cancelled
                admitted.set_result(None)
                self._running += 1

    async def sent(self, request: httpx.Request) -> None:
        """Note when a request, or its repetition, is sent."""
        request.extensions[CUTS] = self._cuts

    async def answered(self, response: httpx.Response) -> None:
        """Change the limit; of the refusals of requests sent together only the first halves it."""
        status = response.status_code
        if status == TOO_MANY or status >= SERVER_ERRORS:
            self._successes = 0
            if response.request.extensions.get(CUTS) == self._cuts:
                self._cuts += 1
                self.limit = max(1, self.limit // 2)
        elif response.is_success:
            self._successes += 1
            if self._successes >= self.limit:
                self._successes, self.limit = 0, min(self._most, self.limit + 1)
                self._admit()
