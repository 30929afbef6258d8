"""Sends requests to a server with the `openai` client, which repeats them after a refusal for load.

In: a path below `base_url` and a body. Out: the parsed answer, or its chunks. Raises exceptions of
ours only (`failures.py`). Used on one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import httpx
import openai

from _inf.backends.openai.failures import Access, prompt_name
from _inf.backends.openai.pace import Pace
from _inf.errors import RequestFailure, shown

# Between them the client waits for 0.5 to 8 s, or for what Retry-After says, at most a minute.
RETRIES = 5
CONNECT_SECONDS = 10.0


class Server:
    """A connection to the server. silence: the most seconds without a byte of an answer."""

    def __init__(self, access: Access, silence: float | None, most: int) -> None:
        self.access = access
        self.pace = Pace(most)
        self.closing: asyncio.Task[None] | None = None  # kept here, because the loop does not
        timeout = httpx.Timeout(silence, connect=CONNECT_SECONDS, pool=None)
        self.client = openai.AsyncOpenAI(
            base_url=access.base_url,
            api_key=access.key,  # with None it would take the variable OPENAI_API_KEY
            max_retries=RETRIES,
            timeout=timeout,
            http_client=openai.DefaultAsyncHttpxClient(
                timeout=timeout,
                limits=httpx.Limits(max_keepalive_connections=most),
                event_hooks={"request": [self.pace.sent], "response": [self.pace.answered]},
            ),
        )

    async def look(self, path: str) -> None:
        """Raise if the server is not there or refuses; an answer of any form is enough."""
        with self._failures(None):
            await self.client.get(path, cast_to=object, options={"max_retries": 1})

    async def ask(
        self, path: str, body: Mapping[str, Any], call: object, prompt_index: int | None = None
    ) -> Mapping[str, Any]:
        """Return the whole answer. call: whose turn it is; prompt_index: for messages."""
        async with self.pace.turn(call):
            with self._failures(prompt_index):
                answer: object = await self.client.post(path, cast_to=object, body=body)
        return self._mapping(answer, prompt_index)

    async def chunks(
        self, path: str, body: Mapping[str, Any], call: object, prompt_index: int | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield the events of a streamed answer."""
        async with self.pace.turn(call):
            with self._failures(prompt_index):
                stream: openai.AsyncStream[object] = await self.client.post(
                    path,
                    cast_to=object,
                    body={**body, "stream": True},
                    stream=True,
                    stream_cls=openai.AsyncStream[object],
                )
                try:
                    async for chunk in stream:
                        yield self._mapping(chunk, prompt_index)
                finally:
                    await stream.close()

    @contextlib.contextmanager
    def _failures(self, prompt_index: int | None) -> Iterator[None]:
        try:
            yield
        except (openai.OpenAIError, httpx.HTTPError, ValueError) as failure:
            raise self.access.failure(failure, prompt_index) from failure

    def _mapping(self, answer: object, prompt_index: int | None) -> Mapping[str, Any]:
        if not isinstance(answer, Mapping):
            raise self.unreadable(answer, prompt_index)
        return answer

    def unreadable(self, answer: object, prompt_index: int | None) -> RequestFailure:
        """The failure of an answer that has not the form of the API."""
        return RequestFailure(
            f"{prompt_name(prompt_index)}: {self.access.base_url} sent an answer of an unknown "
            f"form: {shown(answer)}."
        )
