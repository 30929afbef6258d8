"""Finds the answers and rewards that a file of rows lacks, and makes both at once.

Each answer is stored before it is scored, so that no end of the run and no fault of a reward
function loses it; and no answer is asked for again because its reward is missing or old.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from _inf.apps.batch.output_file import REWARD_ERROR, OutputFile, is_error
from _inf.apps.batch.runner import Keep, OnError, keep_in
from _inf.apps.code_version import CodeVersion, file_digest
from _inf.apps.eval.environments import ENVIRONMENT
from _inf.apps.eval.metrics import AnswerRow
from _inf.apps.eval.reward import Reward, RewardError
from _inf.apps.eval.reward_pool import RewardPool
from _inf.apps.tally import Tally

FILES = "scored_by_files"  # those of which only the function's processes knew
RESCORE = "--rescore"
LOOP_SCORE = "reward_score"  # verl's name for an agent loop's own
Arguments = Callable[[dict[str, Any]], dict[str, Any]]  # of the reward function, for a row


@dataclasses.dataclass(frozen=True)
class Judges:
    """The code that scores an answer: its agent loop or its environment, if that gave a reward,
    else the reward function.

    loops: the agent loops' versions, by their names. environment: its version; None if there is
    none, or if its rewards do not count.
    """

    pool: RewardPool
    loops: Mapping[str, CodeVersion] = dataclasses.field(default_factory=dict)
    environment: CodeVersion | None = None

    def of(self, row: AnswerRow) -> CodeVersion | None:
        """Return the version of the loop or environment that scores a row; None: the function."""
        if scored_by_its_loop(row):
            return self.loops[row["agent_loop"]]
        if self.environment is not None and ENVIRONMENT in row.get("reward_scores", {}):
            return self.environment
        return None

    def keep(self, row: AnswerRow, digest: Callable[[Path], str]) -> bool:
        """Whether the same code scored a row, so that its reward can stay. digest: of a file."""
        judge, files = self.of(row), {}
        if judge is None:
            files = {file: digest(Path(file)) for file in row.get(FILES, ())}
            judge = self.pool.code.with_files(files.values())
        kept = judge.scored(row.get("scored_by"))
        self.pool.files |= files if kept else {}
        return kept

    async def scored(self, row: dict[str, Any], arguments: Arguments) -> dict[str, Any]:
        """Return a row with an answer and its reward, or the error of its reward."""
        old = ("error", "reward_extra", "scored_by", FILES)
        answer = {name: value for name, value in row.items() if name not in old}
        judge = self.of(row)
        try:
            if judge is None:
                reward = await self.pool.score(arguments(row))
            elif judge is self.environment:
                reward = Reward.of(row["reward_scores"][ENVIRONMENT])
            else:
                reward = _score_of_loop(row)
        except RewardError as failure:
            error = {"code": REWARD_ERROR, "message": str(failure)}
            return answer | {"reward": None, "error": error}
        scored_by = {"reward_extra": reward.extra, "scored_by": str(judge or self.pool.version)}
        files = {FILES: sorted(self.pool.files)} if judge is None and self.pool.files else {}
        return answer | {"reward": reward.value, **scored_by, **files}

    def reported(self, rows: Iterable[AnswerRow]) -> CodeVersion:
        """Return what a report names: the environment if it scored any row, else the function."""
        environment = self.environment
        if environment and any(row.get("scored_by") == str(environment) for row in rows):
            return environment
        return self.pool.version


@dataclasses.dataclass(frozen=True)
class Stored:
    """to_answer, to_score: the lines that lack an answer, or only its reward. why: the reason if
    stored rewards are not kept."""

    wanted: int
    to_answer: list[int]
    to_score: list[int]
    why: str | None

    @classmethod
    def of(cls, file: OutputFile, wanted: int, judges: Judges, rescore: bool) -> Stored:
        """Look through the rows of the first `wanted` lines. rescore: keep no reward."""
        to_answer = [line for line in range(1, wanted + 1) if not file.has_answer(line)]
        to_score, old, digest = [], False, functools.cache(file_digest)
        for row in file.rows():
            if row["line"] <= wanted and file.has_answer(row["line"]):
                has_reward = row.get("reward") is not None
                if rescore or not has_reward or not judges.keep(row, digest):
                    to_score.append(row["line"])
                    old |= has_reward
        why = _why(judges.pool.version, rescore) if old else None
        return cls(wanted, to_answer, to_score, why)

    @property
    def answers(self) -> int:
        return self.wanted - len(self.to_answer)

    @property
    def rewards(self) -> int:
        return self.answers - len(self.to_score)

    def __str__(self) -> str:
        again = f"; {len(self.to_score)} are scored again: {self.why}" if self.why else ""
        kept = f"{self.answers} of {self.wanted} answers, {self.rewards} with their rewards"
        return f"resumed {kept}{again}"


def scored_by_its_loop(row: AnswerRow) -> bool:
    """Whether an agent loop gave the score itself: verl 0.6.1 then asks no reward function
    (`agent_loop.py`, `_run_agent_loop`)."""
    return "agent_loop" in row and LOOP_SCORE in (row.get("reward_scores") or {})


def _score_of_loop(row: AnswerRow) -> Reward:
    """Return the score that an agent loop gave its row, with the values that verl also takes from
    it (`agent_loop.py`, `_postprocess`)."""
    score, extra = row["reward_scores"][LOOP_SCORE], row["extra_fields"].get("reward_extra_info")
    if score is None:  # in JSON
        raise RewardError(
            f"agent loop {row['agent_loop']}: its reward_score is NaN or infinite; return a finite "
            "number, or None to use a reward function."
        )
    return Reward(Reward.of(score).value, extra if isinstance(extra, dict) else {})


def _why(version: CodeVersion, rescore: bool) -> str:
    if rescore:
        return RESCORE
    if version.unknown:
        return (
            f"it is not known whether the reward {version.name} is the same as in the earlier run "
            f"({', '.join(version.unknown)}); make such an object inside of the function, or name "
            "the function as FILE.py:NAME"
        )
    return f"their rewards come from another version of {version.name}"


async def answer_and_score(
    file: OutputFile,
    judges: Judges,
    lines: Iterable[int],
    arguments: Arguments,
    answering: Callable[[Keep], Awaitable[None]] | None,
    tally: Tally,
    on_error: OnError,
) -> None:
    """Score the stored answers of `lines`, and those that `answering` makes meanwhile."""
    waiting: asyncio.Queue[int | None] = asyncio.Queue()
    for line in lines:
        waiting.put_nowait(line)
    finish = keep_in(file, tally, on_error)
    scorers = judges.pool.at_once

    def keep(line: int, row: AnswerRow, tokens: int) -> None:
        if is_error(row):
            finish(line, row, tokens)
            return
        file.append(line, row)
        tally.add(tokens=tokens, answered=1)
        waiting.put_nowait(line)

    async def answer() -> None:
        if answering is not None:
            await answering(keep)
        for _ in range(scorers):
            waiting.put_nowait(None)

    async def score() -> None:
        while (line := await waiting.get()) is not None:
            finish(line, await judges.scored(file.row(line), arguments), 0)

    with tally.showing():
        await asyncio.gather(answer(), *(score() for _ in range(scorers)))
