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


def test_refusals_of_requests_sent_together_halve_the_limit_once() -> None:
    async def run() -> list[int]:
        pace, limits = Pace(16), []
        together = [await sent(pace) for _ in range(3)]
        for request, status in zip(together, (429, 503, 429), strict=True):
            await answered(pace, status, request)
            limits.append(pace.limit)
        await answered(pace, 500, await sent(pace))
        await answered(pace, 404, await sent(pace))
        return [*limits, pace.limit]

    assert asyncio.run(run()) == [8, 8, 8, 4]


def test_as_many_successes_as_the_limit_raise_it_by_one_between_one_and_the_most() -> None:
    async def run() -> list[int]:
        pace, limits = Pace(4), []
        for _ in range(5):
            await answered(pace, 429, await sent(pace))
        assert pace.limit == 1
        for _ in range(12):
            await answered(pace, 200, await sent(pace))
            limits.append(pace.limit)
        return limits

    assert asyncio.run(run()) == [2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4]


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
