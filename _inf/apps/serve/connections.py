"""A request's connection: its body within bounds, work that ends with it, and streams of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence

import anyio
from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from _inf.apps.serve.bodies import BodyT, read_body
from _inf.apps.serve.error_responses import ABANDONED, RequestError
from _inf.errors import EngineDeadError
from _inf.types import T

MAX_BODY_BYTES = 16 * 2**20
BODY_SECONDS = 60.0  # in which a body must arrive
PING_SECONDS = 10.0  # after which a stream that holds back its text shows that it lives


async def read_bytes(request: Request) -> bytes:
    """Read a request's body, within bounds of size and time."""
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    reason = f"body: it is above the limit of {MAX_BODY_BYTES} bytes."
                    raise RequestError(413, reason)
    except TimeoutError:
        raise RequestError(408, f"body: it did not arrive in {BODY_SECONDS:g} seconds.") from None
    except ClientDisconnect:
        raise RequestError(ABANDONED, "The connection was closed.") from None
    return bytes(body)


async def read_request(form: type[BodyT], request: Request) -> BodyT:
    """Read a body on a thread: one of many megabytes takes a second."""
    return await asyncio.to_thread(read_body, form, await read_bytes(request))


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Await `work`, or cancel it when the connection closes."""

    async def closed() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, closing = asyncio.ensure_future(work), asyncio.ensure_future(closed())
    try:
        await asyncio.wait((working, closing), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestError(ABANDONED, "The connection was closed.")
        if working.cancelled():  # not by us
            raise EngineDeadError("The engine was stopped while it answered.")
        return working.result()
    finally:
        working.cancel()
        closing.cancel()
        await asyncio.gather(working, closing, return_exceptions=True)


async def merged(
    streams: Sequence[AsyncGenerator[T, None]],
) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items of all streams with the index of their stream, as they come. The first
    failure, and closing this iterator, closes all of them."""
    if len(streams) == 1:  # as most requests have: without a task and a queue
        async with contextlib.aclosing(streams[0]) as only:
            async for alone in only:
                yield 0, alone
        return
    items: asyncio.Queue[tuple[int, T] | None] = asyncio.Queue()

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        async with contextlib.aclosing(stream):
            async for item in stream:
                items.put_nowait((index, item))

    pumps = [asyncio.ensure_future(pump(*numbered)) for numbered in enumerate(streams)]
    all_of_them = asyncio.gather(*pumps)
    all_of_them.add_done_callback(lambda _: items.put_nowait(None))
    try:
        while (item := await items.get()) is not None:
            yield item
        await all_of_them
    finally:
        for running in pumps:
            running.cancel()
        await asyncio.gather(all_of_them, *pumps, return_exceptions=True)


class EventStream(StreamingResponse):
    """Server-sent events. Closes their iterator when the connection closes. ping: what is sent
    while there are none; clients close a connection that says nothing for long."""

    media_type = "text/event-stream"

    def __init__(
        self, first: str, events: AsyncGenerator[str, None], headers: Mapping[str, str], ping: str
    ) -> None:
        async def all_events() -> AsyncIterator[str]:
            yield first
            async for event in events:
                yield event

        super().__init__(all_events(), headers={"Cache-Control": "no-cache", **headers})
        self._events, self._ping = events, ping.encode()

    async def stream_response(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        sent = now()

        async def noted(message: Message) -> None:
            nonlocal sent
            sent = now()
            await send(message)

        async def ping() -> None:
            while True:
                await asyncio.sleep(sent + PING_SECONDS - now())
                if now() - sent >= PING_SECONDS:
                    body = {"body": self._ping, "more_body": True}
                    await noted({"type": "http.response.body", **body})

        pinging = asyncio.ensure_future(ping())
        try:
            await super().stream_response(noted)
        finally:
            pinging.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._events):
            await super().__call__(scope, receive, send)
