"""Decides what a file of rows lacks: answers, and rewards of today's reward function. An answer is
never asked for twice because its reward is missing or old."""

from __future__ import annotations

import dataclasses

from _inf.apps.batch.output_file import OutputFile
from _inf.apps.eval.reward_version import RewardVersion


@dataclasses.dataclass(frozen=True)
class Stored:
    """answers, rewards: how many of `wanted` stay of an earlier run. to_answer, to_score: the lines
    that lack the one, or only the other. why: the reason if stored rewards are not kept."""

    wanted: int
    answers: int
    rewards: int
    to_answer: list[int]
    to_score: list[int]
    why: str | None

    def __str__(self) -> str:
        said = f"resumed {self.answers} of {self.wanted} answers, {self.rewards} with their rewards"
        again = f"; {len(self.to_score)} are scored again: {self.why}" if self.why else ""
        return said + again


def stored_answers(file: OutputFile, wanted: int, version: RewardVersion, rescore: bool) -> Stored:
    """Look through the rows of the first `wanted` lines. rescore: keep no reward."""
    answered, to_score, old = set(), [], 0
    for row in file.rows():
        if (line := row["line"]) <= wanted and "completion_tokens" in row:
            answered.add(line)
            has_reward = row.get("reward") is not None
            if rescore or not has_reward or not version.scored(row.get("scored_by")):
                to_score.append(line)
                old += has_reward
    return Stored(
        wanted=wanted,
        answers=len(answered),
        rewards=len(answered) - len(to_score),
        to_answer=[line for line in range(1, wanted + 1) if line not in answered],
        to_score=to_score,
        why=_why(version, rescore) if old else None,
    )


def _why(version: RewardVersion, rescore: bool) -> str:
    if rescore:
        return "--rescore"
    if version.unknown:
        return (
            f"the reward {version.name} uses {', '.join(version.unknown)}, of which nobody can say "
            "whether it is the same as in the earlier run; make such an object inside of the "
            "function, or name the function as FILE.py:NAME"
        )
    return f"their rewards are of another version of {version.name}"
