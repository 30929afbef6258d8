"""Streams of events on a connection, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from _inf.apps.serve.connections import EventStream
from _inf.apps.serve.message_responses import MessagesResponses
from _inf.apps.serve.responses import ChatResponses

PING = 0.05  # seconds


def sent(*waits: float, ping: str = ": ping\n\n") -> list[dict[str, Any]]:
    """What a stream sends whose events come after so many seconds each."""
    found: list[dict[str, Any]] = []

    async def events() -> AsyncGenerator[str, None]:
        for number, wait in enumerate(waits):
            await asyncio.sleep(wait)
            yield f"data: {number}\n\n"

    async def send(message: Any) -> None:
        found.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def answer() -> None:
        await EventStream("data: first\n\n", events(), {}, ping)({"type": "http"}, receive, send)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(answer())
    return found


@pytest.mark.parametrize("kind", [ChatResponses, MessagesResponses])
def test_stream_that_holds_back_pings(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("_inf.apps.serve.connections.PING_SECONDS", PING)
    start, first, *rest, one, end = sent(PING * 10, ping=kind.ping)
    assert start["type"] == "http.response.start" and first["body"] == b"data: first\n\n"
    assert len(rest) >= 2 and {each["body"] for each in rest} == {kind.ping.encode()}
    assert one["body"] == b"data: 0\n\n"
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}


def test_stream_that_goes_on_does_not_ping() -> None:
    bodies = [each["body"] for each in sent(0, 0.01, 0.01)[1:]]
    assert bodies == [b"data: first\n\n", *[f"data: {n}\n\n".encode() for n in range(3)], b""]
