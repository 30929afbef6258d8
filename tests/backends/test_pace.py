"""The limit of requests at once: halved by refusals, raised by successes, shared by calls."""

from __future__ import annotations

import asyncio

from _inf.backends.openai.client import Pace
from _inf.backends.openai.http import httpx


async def sent(pace: Pace) -> httpx.Request:
    request = httpx.Request("POST", "http://localhost")
    await pace.sent(request)
    return request


async def answered(pace: Pace, status: int, request: httpx.Request) -> None:
    await pace.answered(httpx.Response(status, request=request))


def test_refusals_of_requests_sent_together_halve_the_limit_once_and_successes_raise_it() -> None:
    async def run() -> list[int]:
        pace, limits = Pace(16), []
        together = [await sent(pace) for _ in range(3)]
        for request, status in zip(together, (429, 503, 429), strict=True):
            await answered(pace, status, request)
            limits.append(pace.limit)
        for status in (500, 404, 429, 429, 429, 429, *[200] * 6):
            await answered(pace, status, await sent(pace))
            limits.append(pace.limit)
        return limits

    assert asyncio.run(run()) == [8, 8, 8, 4, 4, 2, 1, 1, 1, 2, 2, 3, 3, 3, 4]


def test_short_call_does_not_wait_for_all_rows_of_a_long_one() -> None:
    async def run() -> list[str]:
        pace, order = Pace(1), []

        async def row(call: str) -> None:
            async with pace.turn(call):
                order.append(call)
                await asyncio.sleep(0)

        rows = [asyncio.ensure_future(row("long")) for _ in range(6)]
        await asyncio.sleep(0)
        await asyncio.gather(*rows, *(row("short") for _ in range(2)))
        return order

    assert asyncio.run(run()).index("short") <= 3


def test_cancelled_rows_give_their_places_back() -> None:
    async def run() -> int:
        pace, inside = Pace(2), 0

        async def row() -> None:
            nonlocal inside
            async with pace.turn("call"):
                inside += 1
                await asyncio.sleep(3600)

        rows = [asyncio.ensure_future(row()) for _ in range(6)]
        for first in (0, 2):
            await asyncio.sleep(0.01)
            for each in rows[first : first + 2]:
                each.cancel()
        rows[5].cancel()  # it waits
        await asyncio.sleep(0.01)
        rows[4].cancel()
        await asyncio.gather(*rows, return_exceptions=True)
        async with pace.turn("other"):
            return inside

    assert asyncio.run(asyncio.wait_for(run(), 20)) == 5
