"""Sends requests to a server with the `openai` client, which repeats them if the server is
overloaded, and limits how many run at once. Used on one event loop; raises exceptions of ours
only."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any

import openai

from _inf.backends.openai.failures import Access
from _inf.backends.openai.http import httpx

# Between them the client waits for 0.5 to 8 s, or for what Retry-After says, at most a minute.
RETRIES = 10
CONNECT_SECONDS = 10.0

# One request of a call waits at a time, so that calls take turns, whatever their size.
queue_of_call: contextvars.ContextVar[contextlib.AbstractAsyncContextManager[None]] = (
    contextvars.ContextVar("inf_queue", default=contextlib.nullcontext())  # noqa: B039
)


class Server:
    """A connection to the server. silence: the most seconds without a byte of an answer."""

    def __init__(self, access: Access, silence: float | None, most: int) -> None:
        self.access = access
        self.root = access.base_url.removesuffix("/v1")
        self._free = asyncio.Semaphore(most)
        timeout = httpx.Timeout(silence, connect=CONNECT_SECONDS, pool=None)
        self.client = openai.AsyncOpenAI(
            base_url=access.base_url,
            api_key=access.key or "none",  # else it would take the variable OPENAI_API_KEY
            max_retries=RETRIES,
            timeout=timeout,
            http_client=openai.DefaultAsyncHttpxClient(
                timeout=timeout,
                limits=httpx.Limits(max_keepalive_connections=most),
            ),
        )

    async def ask(
        self, path: str, body: Mapping[str, object], prompt_index: int | None = None
    ) -> Any:
        async with self._turn(prompt_index):
            return await self.client.post(path, cast_to=object, body=body, options=self._options())

    async def control(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Ask for something once, by GET without a body. Rows under way may wait for it, so it is
        not one of those that are limited."""
        with self._failures(None):
            options: dict[str, Any] = {"cast_to": object, "options": self._options(max_retries=0)}
            if body is None:
                return await self.client.get(path, **options)
            return await self.client.post(path, body=body, **options)

    async def chunks(
        self, path: str, body: Mapping[str, object], prompt_index: int | None = None
    ) -> AsyncGenerator[Any, None]:
        options: dict[str, Any] = {"stream": True, "stream_cls": openai.AsyncStream[object]}
        options["options"] = self._options()
        body = {**body, "stream": True}
        async with self._turn(prompt_index):
            async with await self.client.post(path, cast_to=object, body=body, **options) as stream:
                async for chunk in stream:
                    yield chunk

    def _options(self, **others: object) -> Any:
        """Those of a request. Without a key it has no header for one, which openai 3 must be told
        of each."""
        without_key = {"headers": {"Authorization": openai.Omit()}}
        return others if self.access.key else without_key | others

    @contextlib.asynccontextmanager
    async def _turn(self, prompt_index: int | None) -> AsyncIterator[None]:
        async with queue_of_call.get():
            await self._free.acquire()
        try:
            with self._failures(prompt_index):
                yield
        finally:
            self._free.release()

    @contextlib.contextmanager
    def _failures(self, prompt_index: int | None) -> Iterator[None]:
        try:
            yield
        except (openai.OpenAIError, httpx.HTTPError, ValueError) as failure:
            raise self.access.failure(failure, prompt_index) from failure
