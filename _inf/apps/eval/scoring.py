"""Answers the rows of an evaluation and scores stored answers, both at once. Each answer is stored
before it is scored, so that no end of the run and no fault of a reward function loses it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from _inf.apps.batch.output_file import OutputFile, is_error
from _inf.apps.batch.runner import SAY_SECONDS, Keep, OnError
from _inf.apps.eval.reward import RewardPool
from _inf.apps.eval.reward_worker import RewardError
from _inf.runtime.progress import Report, progress

Row = dict[str, Any]
Arguments = Callable[[Row], dict[str, Any]]  # those of the reward function for a stored answer
Answering = Callable[[Keep], Awaitable[None]]
Tell = Callable[[str], None]


class Tally:
    """Counts a run's rows and tokens, and shows them: in a bar of the scored rows, or where there
    can be none in a line now and then.

    total: rows of the evaluation. scored: those with a reward of an earlier run.
    """

    def __init__(self, total: int, answered: int, scored: int, tell: Tell) -> None:
        self.total, self.answered, self.scored = total, answered, scored
        self.tokens, self.answer_seconds = 0, 0.0
        self._tell = tell
        self._report: Report | None = None
        self._start = self._said = time.monotonic()

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        self._start = self._said = time.monotonic()
        with progress(self.total, None, before=self.scored) as self._report:
            yield

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.answer_seconds if self.tokens else None

    def add_answer(self, tokens: int, *, failed: bool) -> None:
        self.answered += not failed
        self.scored += failed  # nothing is left to do
        self.tokens += tokens
        self.answer_seconds = time.monotonic() - self._start
        self._show()

    def add_score(self) -> None:
        self.scored += 1
        self._show()

    def _show(self) -> None:
        if self._report:
            self._report(self.scored, self.tokens)
        elif (now := time.monotonic()) - self._said >= SAY_SECONDS:
            self._said = now
            speed = f", {self.tokens_per_second:.0f} tok/s" if self.tokens_per_second else ""
            self._tell(f"{self.scored} of {self.total} scored, {self.answered} answered{speed}")


async def answer_and_score(
    file: OutputFile,
    pool: RewardPool,
    lines: list[int],
    arguments: Arguments,
    answering: Answering | None,
    tally: Tally,
    on_error: OnError,
) -> None:
    """Score the stored answers of `lines`, and those that `answering` makes meanwhile."""
    waiting: asyncio.Queue[int | None] = asyncio.Queue()
    for line in lines:
        waiting.put_nowait(line)

    def keep(line: int, row: Mapping[str, Any], tokens: int) -> None:
        file.append(line, row)
        tally.add_answer(tokens, failed=is_error(row))
        if is_error(row):
            on_error(line, row["error"]["message"])
        else:
            waiting.put_nowait(line)

    async def answer() -> None:
        if answering is not None:
            await answering(keep)
        for _ in range(pool.at_once):
            waiting.put_nowait(None)

    async def score() -> None:
        while (line := await waiting.get()) is not None:
            row = await _scored(file.row(line), arguments, pool)
            file.append(line, row)
            tally.add_score()
            if is_error(row):
                on_error(line, row["error"]["message"])

    with tally.showing():
        await asyncio.gather(answer(), *(score() for _ in range(pool.at_once)))


async def _scored(row: Row, arguments: Arguments, pool: RewardPool) -> Row:
    """The row with its reward, or the error of the reward function."""
    answer = {name: row[name] for name in row if name not in ("error", "reward_extra", "scored_by")}
    try:
        reward = await pool.score(**arguments(row))
    except RewardError as failure:
        error = {"code": "reward_error", "message": str(failure)}
        return answer | {"reward": None, "error": error}
    scored_by = str(pool.version)
    return answer | {"reward": reward.value, "reward_extra": reward.extra, "scored_by": scored_by}
