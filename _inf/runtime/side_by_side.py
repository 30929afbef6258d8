"""Runs the rows of one call side by side: the one place that gathers, reports and cancels them.

Every backend and every conversation uses it, so that a failed row, Ctrl-C, a time limit and
`over_sample_rate` end the other rows in the same way everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from _inf.types import Report

T = TypeVar("T")

REPORT_SECONDS = 0.25
STARTED_AT_ONCE = 64  # rows; then other calls start theirs: to start a thousand takes half a second


async def run_rows(
    rows: Iterable[Coroutine[object, None, T]],
    report: Report | None = None,
    tokens: Callable[[], int] = lambda: 0,
    *,
    enough: int | None = None,
    late: Callable[[int], T] | None = None,
) -> list[T]:
    """Await all rows and return their values in order; raise what the first failed row raises.

    rows: coroutines, started in order. report: called regularly, and at the end, with the number of
    ended rows and with `tokens()`, the number of tokens sampled so far. enough: as soon as so many
    rows have ended, the others are cancelled; late: the value of such a row, by its place.

    No row runs on after this returns or raises.
    """
    tasks: list[asyncio.Task[T]] = []
    async with _reporting(report, tasks, tokens) if report else contextlib.nullcontext():
        try:
            for row in rows:
                tasks.append(asyncio.ensure_future(row))
                if len(tasks) % STARTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            await _ended(tasks, len(tasks) if enough is None else enough)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return [
        late(place) if late and task.cancelled() else task.result()
        for place, task in enumerate(tasks)
    ]


@contextlib.asynccontextmanager
async def _reporting(
    report: Report, tasks: Sequence[asyncio.Task[Any]], tokens: Callable[[], int]
) -> AsyncIterator[None]:
    def report_now() -> None:
        report(sum(task.done() and not task.cancelled() for task in tasks), tokens())

    async def report_regularly() -> None:
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            report_now()

    reporting = asyncio.ensure_future(report_regularly())
    try:
        yield
    finally:
        reporting.cancel()
    report_now()


async def _ended(tasks: list[asyncio.Task[T]], enough: int) -> None:
    """Wait until so many tasks have ended, at least one; raise what the first failed one raises."""
    for ended, task in enumerate(asyncio.as_completed(tasks), start=1):
        await task
        if ended >= enough:
            return
