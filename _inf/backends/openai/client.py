"""Sends requests to a server with the `openai` client, which repeats them after a refusal for load.

Used on one event loop; raises exceptions of ours only.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import httpx
import openai

from _inf.backends.openai.failures import Access
from _inf.backends.openai.pace import Pace, current_call

# Between them the client waits for 0.5 to 8 s, or for what Retry-After says, at most a minute.
RETRIES = 5
CONNECT_SECONDS = 10.0


class Server:
    """A connection to the server. silence: the most seconds without a byte of an answer."""

    def __init__(self, access: Access, silence: float | None, most: int) -> None:
        self.access = access
        self.pace = Pace(most)
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
        async with self._turn(None):
            await self.client.get(path, cast_to=object, options={"max_retries": 1})

    async def ask(self, path: str, body: Mapping[str, Any], prompt_index: int | None = None) -> Any:
        """Return the whole answer; prompt_index: for messages."""
        async with self._turn(prompt_index):
            return await self.client.post(path, cast_to=object, body=body)

    async def chunks(
        self, path: str, body: Mapping[str, Any], prompt_index: int | None = None
    ) -> AsyncGenerator[Any, None]:
        options: dict[str, Any] = {"stream": True, "stream_cls": openai.AsyncStream[object]}
        body = {**body, "stream": True}
        async with self._turn(prompt_index):
            async with await self.client.post(path, cast_to=object, body=body, **options) as stream:
                async for chunk in stream:
                    yield chunk

    @contextlib.asynccontextmanager
    async def _turn(self, prompt_index: int | None) -> AsyncIterator[None]:
        async with self.pace.turn(current_call.get()):
            try:
                yield
            except (openai.OpenAIError, httpx.HTTPError, ValueError) as failure:
                raise self.access.failure(failure, prompt_index) from failure
