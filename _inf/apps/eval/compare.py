"""Compares two runs of `inf eval` on the same data: paired differences with bootstrap intervals.
Rows are paired by the data's row number; a prompt's reward is the mean of its answers."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from _inf.apps.code_version import UNSURE, digest_of
from _inf.apps.configured_code import LOOP
from _inf.apps.eval.dataset import UNKNOWN_SOURCE
from _inf.apps.eval.intervals import mean_interval
from _inf.apps.eval.metrics import AnswerRow
from _inf.apps.json_lines import json_lines, json_text
from _inf.apps.rollouts.trainer_rows import finite, is_of_verl
from _inf.errors import ConfigError, shown

Run: TypeAlias = dict[int, list[AnswerRow]]  # an answer each

SHOWN = 20  # changed prompts in the table
PREVIEW = 60  # characters of a prompt there


@dataclasses.dataclass(frozen=True)
class Pair:
    """A prompt that both runs scored, with the mean reward of each. number: of the data's row, or
    of the prompt among those of a trainer's files, from 0; prompt: the end of its text."""

    number: int
    prompt: str
    data_source: str
    a: float
    b: float

    @property
    def difference(self) -> float:
        return self.b - self.a


@dataclasses.dataclass(frozen=True)
class MeanDifference:
    """The mean of B - A over prompts. low, high: the bounds of its 95 % interval, from resampled
    prompts; None if all differences are equal, also of a single prompt."""

    prompts: int
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> MeanDifference:
        a, b = (
            statistics.fmean(pair.a for pair in pairs),
            statistics.fmean(pair.b for pair in pairs),
        )
        differences = [pair.difference for pair in pairs]
        low, high = mean_interval(differences) or (None, None)
        return cls(len(pairs), a, b, statistics.fmean(differences), low, high)

    @property
    def interval(self) -> str:
        """The interval, or why there is none."""
        if self.low is not None:
            return f"{self.low:+.4f} to {self.high:+.4f}"
        if self.prompts == 1:
            return "none: one prompt says nothing about others"
        equal = f"all differ by {self.difference:+g}" if self.difference else "no prompt differs"
        return f"none: {equal}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences between two runs.

    changed: the prompts whose mean rewards differ, the greatest differences first. only_in_a,
    only_in_b, without_reward (in one of them): numbers of rows that are not compared. unscored:
    answers without a reward, of A and of B. scored_by: the versions of the reward functions that
    scored A and B, as their rows name them.
    """

    a: str
    b: str
    overall: MeanDifference
    by_source: dict[str, MeanDifference]
    changed: list[Pair]
    only_in_a: list[int]
    only_in_b: list[int]
    without_reward: list[int]
    unscored: tuple[int, int]
    scored_by: tuple[list[str], list[str]]

    @property
    def same_reward(self) -> bool:
        """Whether one version of one reward function, or agent loops that are the same in both,
        scored all answers of both."""
        a, b = ({digest_of(name) for name in names} for names in self.scored_by)
        functions = {digest_of(name) for name in self.scored_by[0] if not name.startswith(LOOP)}
        sure = not any(digest.endswith(UNSURE) for digest in a)
        return a == b and len(functions) <= 1 and sure

    def json(self) -> str:
        return json_text(dataclasses.asdict(self), indent=1)

    def table(self) -> str:
        named = [("all", self.overall), *self.by_source.items()]
        width = max(len(name) for name, _ in named)
        lines = [
            f"A: {self.a}",
            f"B: {self.b}",
            *self._about_rewards(),
            f"{'':<{width}}  prompts        A        B    B - A  95 % interval",
        ]
        for name, mean in named:
            means = f"{mean.a:8.4f} {mean.b:8.4f} {mean.difference:+8.4f}"
            lines.append(f"{name:<{width}}  {mean.prompts:7} {means}  {mean.interval}")
        better = sum(pair.difference > 0 for pair in self.changed)
        worse = len(self.changed) - better
        equal = self.overall.prompts - len(self.changed)
        lines.append(f"better: {better}, worse: {worse}, equal: {equal}")
        lines += [
            f"  row {pair.number}: {pair.a:g} -> {pair.b:g} ({pair.data_source}) {pair.prompt}"
            for pair in self.changed[:SHOWN]
        ]
        if (more := len(self.changed) - SHOWN) > 0:
            lines.append(f"  and {more} more, in the JSON file")
        return "\n".join(lines + self._left_out())

    def _about_rewards(self) -> list[str]:
        if self.same_reward:
            return []
        a, b = map(", ".join, self.scored_by)
        sure = "Maybe not" if a == b else "Not"
        return [
            f"{sure} scored by the same reward function, so B - A may come from that:",
            f"  A was scored by {a}",
            f"  B was scored by {b}",
            "  To score both again, repeat each run's command with the same --reward.",
        ]

    def _left_out(self) -> list[str]:
        left_out = {
            "only in A": self.only_in_a,
            "only in B": self.only_in_b,
            "no reward in one of them": self.without_reward,
        }
        lines = []
        for why, numbers in left_out.items():
            lines += [f"{why}, not compared: {len(numbers)} rows {shown(numbers)}"] * bool(numbers)
        a, b = self.unscored
        return lines + [f"answers without a reward: {a} of A, {b} of B"] * bool(a or b)


def compare_runs(a: Path, b: Path) -> Comparison:
    """Compare the rows of two runs of `inf eval`, or of two files of a verl trainer, whose rows are
    paired by their prompts.

    Raises `ConfigError` for another file, for runs on different data, and for runs that have no
    scored prompt in common.
    """
    prompts: dict[str, int] = {}
    first, second = read_run(a, prompts), read_run(b, prompts)
    both = sorted(first.keys() & second.keys())
    pairs = []
    for number in both:
        one, other = first[number], second[number]
        _check_same(a, b, number, one[0], other[0])
        if (ours := _rewards(one)) and (theirs := _rewards(other)):
            source = one[0].get("data_source") or UNKNOWN_SOURCE
            means = statistics.fmean(ours), statistics.fmean(theirs)
            pairs.append(Pair(number, _end(one[0].get("prompt")), source, *means))
    if not pairs:
        raise ConfigError(f"{a} and {b} have no prompt in common that both scored.")
    by_source: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_source[pair.data_source].append(pair)
    changed = [pair for pair in pairs if pair.difference]
    answers = [[row for rows in run.values() for row in rows] for run in (first, second)]
    unscored = [sum(row["reward"] is None for row in rows) for rows in answers]
    scored_by = [
        sorted({str(row.get("scored_by")) for row in rows if row["reward"] is not None})
        for rows in answers
    ]
    return Comparison(
        a=str(a),
        b=str(b),
        overall=MeanDifference.of(pairs),
        by_source={name: MeanDifference.of(group) for name, group in by_source.items()},
        changed=sorted(changed, key=lambda pair: -abs(pair.difference)),
        only_in_a=sorted(first.keys() - second.keys()),
        only_in_b=sorted(second.keys() - first.keys()),
        without_reward=sorted(set(both) - {pair.number for pair in pairs}),
        unscored=(unscored[0], unscored[1]),
        scored_by=(scored_by[0], scored_by[1]),
    )


def read_run(path: Path, prompts: dict[str, int] | None = None) -> Run:
    """Read a run's rows, by the number of the data's row; of several of a line the last counts.

    prompts: the numbers of a trainer's prompts and their ground truths; new ones are added.
    """
    rows: dict[int, AnswerRow] = {}
    for place, row in json_lines(path):
        if prompts is not None and isinstance(row, dict) and is_of_verl(row):
            row = _of_trainer(row, prompts)
        _check_row(row, f"{path}, line {place}")
        rows[row.get("line", place)] = row
    run: Run = defaultdict(list)
    for row in rows.values():
        run[row["number"]].append(row)
    return run


def _of_trainer(row: Mapping[str, object], prompts: dict[str, int]) -> AnswerRow:
    prompt, truth, source = str(row["input"]), str(row.get("gts")), row.get("data_source")
    return {
        "number": prompts.setdefault(f"{prompt}\0{truth}", len(prompts)),
        "prompt": prompt,
        "data_source": None if source is None else str(source),
        "ground_truth": truth,
        "reward": finite(row["score"]),
        "scored_by": "the trainer",
    }


def _end(prompt: object) -> str:
    """The end of a prompt's text, where its question stands, or of its last message's."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        prompt = prompt[-1].get("content")
    words = " ".join(str(prompt or "")[-4 * PREVIEW :].split())
    return words if len(words) <= PREVIEW else f"... {words[-PREVIEW:]}"


def _check_row(row: object, place: str) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("number"), int) or "reward" not in row:
        raise ConfigError(
            f"{place}: a row of `inf eval` has number and reward; this is {shown(row)}."
        )
    reward = row["reward"]
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise ConfigError(f"{place}: reward must be a number or null, not {shown(reward)}.")


def _check_same(a: Path, b: Path, number: int, one: AnswerRow, other: AnswerRow) -> None:
    for name in ("prompt", "data_source", "ground_truth"):
        if one.get(name) != other.get(name):
            raise ConfigError(
                f"{a} and {b} are of different data: the {name} of row {number} is "
                f"{shown(one.get(name))} in the first and {shown(other.get(name))} in the second. "
                "Compare runs on the same data."
            )


def _rewards(rows: Sequence[AnswerRow]) -> list[float]:
    return [row["reward"] for row in rows if row["reward"] is not None]
