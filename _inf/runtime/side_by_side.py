"""Runs the rows of one call side by side: the one place that gathers, reports and cancels them.

Every backend and every conversation uses it, so that a failed row, Ctrl-C, a time limit and
`over_sample_rate` end the other rows in the same way everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar, overload

from _inf.types import Report

T = TypeVar("T")

REPORT_SECONDS = 0.25
STARTED_AT_ONCE = 64  # rows; then other calls start theirs: to start a thousand takes half a second


@overload
async def run_rows(
    rows: Iterable[Coroutine[object, None, T]],
    report: Report | None = None,
    tokens: Callable[[], int] = lambda: 0,
) -> list[T]: ...


@overload
async def run_rows(
    rows: Iterable[Coroutine[object, None, T]],
    report: Report | None,
    tokens: Callable[[], int],
    *,
    enough: int,
) -> list[T | None]: ...


async def run_rows(
    rows: Iterable[Coroutine[object, None, T]],
    report: Report | None = None,
    tokens: Callable[[], int] = lambda: 0,
    *,
    enough: int | None = None,
) -> list[Any]:
    """Await all rows and return their values in order; raise what the first failed row raises.

    rows: coroutines, started in order. report: called regularly, and at the end, with the number of
    ended rows and with `tokens()`, the number of tokens sampled so far. enough: as soon as so many
    rows have ended, the others are cancelled and their values are None.

    No row runs on after this returns or raises.
    """
    tasks: list[asyncio.Task[T]] = []

    def report_progress() -> None:
        if report is not None:
            report(sum(task.done() and not task.cancelled() for task in tasks), tokens())

    async def report_regularly() -> None:
        while report is not None:
            await asyncio.sleep(REPORT_SECONDS)
            report_progress()

    reporting = asyncio.ensure_future(report_regularly())
    try:
        for row in rows:
            tasks.append(asyncio.ensure_future(row))
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        await _ended(tasks, len(tasks) if enough is None else enough)
    finally:
        for task in (reporting, *tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    report_progress()
    return [None if task.cancelled() else task.result() for task in tasks]


async def _ended(tasks: list[asyncio.Task[T]], enough: int) -> None:
    """Wait until so many tasks have ended, at least one; raise what the first failed one raises."""
    for ended, task in enumerate(asyncio.as_completed(tasks), start=1):
        await task
        if ended >= enough:
            return
