"""Finds what a file of rows lacks, answers and rewards of today's function, and makes both at once.
Each answer is stored before it is scored, so that no end of the run and no fault of a reward
function loses it; and none is asked for twice because its reward is missing or old."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from _inf.apps.batch.output_file import OutputFile, is_error
from _inf.apps.batch.runner import Keep, OnError, keep_in
from _inf.apps.code_version import CodeVersion
from _inf.apps.eval.environments import ENVIRONMENT
from _inf.apps.eval.reward import Reward, RewardPool
from _inf.apps.eval.reward_worker import RewardError
from _inf.apps.tally import Tally

Row = dict[str, Any]
OWN_SCORE = "reward_score"  # verl's name for that of an agent loop


@dataclasses.dataclass(frozen=True)
class Stored:
    """to_answer, to_score: the lines that lack an answer, or only its reward. why: the reason if
    stored rewards are not kept."""

    wanted: int
    to_answer: list[int]
    to_score: list[int]
    why: str | None

    @property
    def answers(self) -> int:
        return self.wanted - len(self.to_answer)

    @property
    def rewards(self) -> int:
        return self.answers - len(self.to_score)

    def __str__(self) -> str:
        said = f"resumed {self.answers} of {self.wanted} answers, {self.rewards} with their rewards"
        again = f"; {len(self.to_score)} are scored again: {self.why}" if self.why else ""
        return said + again


def stored_answers(
    file: OutputFile,
    wanted: int,
    version: CodeVersion,
    own: CodeVersion | None,
    rescore: bool,
) -> Stored:
    """Look through the rows of the first `wanted` lines. own: that of an environment that scores
    its rows. rescore: keep no reward."""
    answered, to_score, old = set(), [], 0
    for row in file.rows():
        if (line := row["line"]) <= wanted and _has_answer(row):
            answered.add(line)
            has_reward = row.get("reward") is not None
            scored_by = row.get("scored_by")
            by_own = own is not None and own.scored(scored_by)
            same = scored_by_its_loop(row) or by_own or version.scored(scored_by)
            if rescore or not has_reward or not same:
                to_score.append(line)
                old += has_reward
    to_answer = [line for line in range(1, wanted + 1) if line not in answered]
    return Stored(wanted, to_answer, to_score, _why(version, rescore) if old else None)


def _has_answer(row: Mapping[str, Any]) -> bool:
    """An aborted row, which earlier releases kept and scored, has none."""
    return "completion_tokens" in row and row.get("finish_reason") != "abort"


def judge_of(
    rows: Iterable[Mapping[str, Any]], version: CodeVersion, own: CodeVersion | None
) -> CodeVersion:
    """What a report names: the environment, `own`, if it scored any row, else the function."""
    by_own = any(row.get("scored_by") == str(own) for row in rows)
    return own if own and by_own else version


def scored_by_its_loop(row: Mapping[str, Any]) -> bool:
    """Whether an agent loop gave the score itself: verl 0.6.1 then asks no reward function
    (`agent_loop.py`, `_run_agent_loop`)."""
    return "agent_loop" in row and OWN_SCORE in (row.get("reward_scores") or {})


def _why(version: CodeVersion, rescore: bool) -> str:
    if rescore:
        return "--rescore"
    if version.unknown:
        return (
            f"the reward {version.name} uses {', '.join(version.unknown)}, of which nobody can say "
            "whether it is the same as in the earlier run; make such an object inside of the "
            "function, or name the function as FILE.py:NAME"
        )
    return f"their rewards are of another version of {version.name}"


async def answer_and_score(
    file: OutputFile,
    pool: RewardPool,
    lines: list[int],
    arguments: Callable[[Row], dict[str, Any]],
    answering: Callable[[Keep], Awaitable[None]] | None,
    own: Mapping[str, CodeVersion],
    tally: Tally,
    on_error: OnError,
) -> None:
    """Score the stored answers of `lines`, and those that `answering` makes meanwhile. arguments:
    those of the reward function for a stored answer. own: the agent loops of names that score rows
    themselves, and the environment, if it does."""
    waiting: asyncio.Queue[int | None] = asyncio.Queue()
    for line in lines:
        waiting.put_nowait(line)

    keep_last = keep_in(file, tally, on_error)  # nothing is left to do for the line

    def keep(line: int, row: Mapping[str, Any], tokens: int) -> None:
        if is_error(row):
            keep_last(line, row, tokens)
            return
        file.append(line, row)
        tally.add(tokens=tokens, answered=1)
        waiting.put_nowait(line)

    async def answer() -> None:
        if answering is not None:
            await answering(keep)
        for _ in range(pool.at_once):
            waiting.put_nowait(None)

    async def score() -> None:
        while (line := await waiting.get()) is not None:
            keep_last(line, await _scored(file.row(line), arguments, pool, own), 0)

    with tally.showing():
        await asyncio.gather(answer(), *(score() for _ in range(pool.at_once)))


async def _scored(
    row: Row,
    arguments: Callable[[Row], dict[str, Any]],
    pool: RewardPool,
    own: Mapping[str, CodeVersion],
) -> Row:
    answer = {name: row[name] for name in row if name not in ("error", "reward_extra", "scored_by")}
    try:
        if scored_by_its_loop(row):
            reward, scored_by = _own_reward(row), str(own[row["agent_loop"]])
        elif ENVIRONMENT in own and ENVIRONMENT in row.get("reward_scores", {}):
            reward = Reward.of(row["reward_scores"][ENVIRONMENT])
            scored_by = str(own[ENVIRONMENT])
        else:
            reward, scored_by = await pool.score(arguments(row)), str(pool.version)
    except RewardError as failure:
        error = {"code": "reward_error", "message": str(failure)}
        return answer | {"reward": None, "error": error}
    return answer | {"reward": reward.value, "reward_extra": reward.extra, "scored_by": scored_by}


def _own_reward(row: Row) -> Reward:
    """The score of a row's agent loop, with what verl takes for its function's other values
    (`agent_loop.py`, `_postprocess`)."""
    score, extra = row["reward_scores"][OWN_SCORE], row["extra_fields"].get("reward_extra_info")
    if score is None:  # in JSON
        raise RewardError(
            f"agent loop {row['agent_loop']}: its reward_score is NaN or infinite; return a finite "
            "number, or None for a reward function's."
        )
    return Reward(Reward.of(score).value, extra if isinstance(extra, dict) else {})
