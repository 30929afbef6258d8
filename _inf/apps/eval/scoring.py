"""Answers the rows of an evaluation and scores stored answers, both at once. Each answer is stored
before it is scored, so that no end of the run and no fault of a reward function loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from _inf.apps.batch.output_file import OutputFile, is_error
from _inf.apps.batch.runner import Keep, OnError
from _inf.apps.eval.reward import RewardPool
from _inf.apps.eval.reward_worker import RewardError
from _inf.apps.tally import Tally

Row = dict[str, Any]
Arguments = Callable[[Row], dict[str, Any]]  # those of the reward function for a stored answer
Answering = Callable[[Keep], Awaitable[None]]


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
        failed = is_error(row)  # nothing is left to do
        tally.add(tokens=tokens, answered=not failed, done=failed)
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
            tally.add(done=1)
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
