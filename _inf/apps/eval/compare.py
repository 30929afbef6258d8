"""Compares two runs on the same data: paired differences with bootstrap intervals. Rows of `inf
eval` are paired by the data's row number, a trainer's by their prompts, at each step that both
have; a prompt's reward is the mean of its answers."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from _inf.apps.code_version import digest_of
from _inf.apps.configured_code import LOOP
from _inf.apps.eval.compared_rows import Answers, Steps, read_steps
from _inf.apps.eval.dataset import UNKNOWN_SOURCE
from _inf.apps.eval.intervals import mean_interval
from _inf.apps.eval.metrics import AnswerRow
from _inf.apps.json_lines import json_text
from _inf.apps.runs.previews import same_end
from _inf.errors import ConfigError, shown

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
    """The differences between two runs, of folders at the last step that both have.

    by_step: of folders, the difference at each step that both have. changed: the prompts whose mean
    rewards differ, the greatest differences first. only_in_a, only_in_b, without_reward (in one of
    them): numbers of rows that are not compared. unscored: answers without a reward, of A and of B.
    scored_by: the versions of the reward functions that scored A and B, as their rows name them.
    notes: sentences on what was left out.
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
    by_step: dict[int, MeanDifference] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def same_reward(self) -> bool:
        """Whether one version of one reward function, or agent loops that are the same in both,
        scored all answers of both."""
        a, b = ({digest_of(name) for name in names} for names in self.scored_by)
        functions = {digest_of(name) for name in self.scored_by[0] if not name.startswith(LOOP)}
        return a == b and len(functions) <= 1

    def json(self) -> str:
        return json_text(dataclasses.asdict(self), indent=1)

    def table(self) -> str:
        lines = [f"A: {self.a}", f"B: {self.b}", *self._about_rewards()]
        if self.by_step:
            lines += _means([(str(step), mean) for step, mean in self.by_step.items()], "step")
            lines.append(f"At step {max(self.by_step)}, the last compared:")
        sources = {} if [*self.by_source] == [UNKNOWN_SOURCE] else self.by_source
        lines += _means([("all", self.overall), *sources.items()])
        better = sum(pair.difference > 0 for pair in self.changed)
        worse = len(self.changed) - better
        equal = self.overall.prompts - len(self.changed)
        lines.append(f"better: {better}, worse: {worse}, equal: {equal}")
        lines += [
            f"  row {pair.number}: {pair.a:g} -> {pair.b:g}"
            f"{f' ({pair.data_source})' if sources else ''} {pair.prompt}"
            for pair in self.changed[:SHOWN]
        ]
        if (more := len(self.changed) - SHOWN) > 0:
            lines.append(f"  and {more} more, in the JSON file")
        return "\n".join(lines + self._left_out())

    def _about_rewards(self) -> list[str]:
        if self.same_reward:
            return []
        a, b = map(", ".join, self.scored_by)
        return [
            "Not scored by the same reward function, so B - A may come from that:",
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
        lines += [f"answers without a reward: {a} of A, {b} of B"] * bool(a or b)
        return lines + self.notes


def _means(named: Sequence[tuple[str, MeanDifference]], title: str = "") -> Iterator[str]:
    """Yield a table's lines. title: of the first column."""
    width = max(len(name) for name in [title, *(name for name, _ in named)])
    yield f"{title:<{width}}  prompts        A        B    B - A  95 % interval"
    for name, mean in named:
        means = f"{mean.a:8.4f} {mean.b:8.4f} {mean.difference:+8.4f}"
        yield f"{name:<{width}}  {mean.prompts:7} {means}  {mean.interval}"


def compare_runs(a: Path, b: Path, reward: str | None = None) -> Comparison:
    """Compare the rows of two runs of `inf eval`, or the samples of a trainer: two files, two
    folders at each step that both have, or a file with each step of a folder.

    reward: the name of a trainer's figure that is compared, instead of the rows' reward.
    Raises `ConfigError` for another file, for runs on different data, and for runs that have no
    scored prompt in common.
    """
    prompts: dict[tuple[str, str], int] = {}
    notes: list[str] = []
    first, second = (read_steps(path, prompts, notes, reward) for path in (a, b))
    names, same = (str(a), str(b)), same_end([text for text, _ in prompts])
    both = {step: (one, other) for step, one, other in _of_both(first, second)}
    pairs = {step: _pairs(names, same, *answers) for step, answers in both.items()}
    pairs = {step: some for step, some in pairs.items() if some}
    notes += _steps_left_out(first, second, pairs.keys())
    if not pairs:
        raise ConfigError(
            " ".join([f"{a} and {b} have no prompt in common that both scored.", *notes])
        )
    last = max(pairs, key=lambda step: -1 if step is None else step)
    by_step = {step: MeanDifference.of(some) for step, some in pairs.items() if step is not None}
    found = _compared(names, *both[last], pairs[last])
    return dataclasses.replace(found, by_step=by_step, notes=notes)


def _of_both(first: Steps, second: Steps) -> Iterator[tuple[int | None, Answers, Answers]]:
    """Yield the steps that both have, with their answers; a file is compared with each step."""
    for step in sorted({*first, *second}, key=lambda step: -1 if step is None else step):
        one, other = first.get(step, first.get(None)), second.get(step, second.get(None))
        if one is not None and other is not None:
            yield step, one, other


def _steps_left_out(first: Steps, second: Steps, compared: Collection[int | None]) -> list[str]:
    left_out = {
        name: sorted(step for step in steps if step is not None and step not in compared)
        for name, steps in (("A", first), ("B", second))
    }
    return [
        f"Steps of {name} that the other has not, or without a scored prompt in common: "
        f"{shown(steps)}."
        for name, steps in left_out.items()
        if steps
    ]


def _pairs(names: tuple[str, str], same_end: str, first: Answers, second: Answers) -> list[Pair]:
    pairs = []
    for number in sorted(first.keys() & second.keys()):
        one, other = first[number], second[number]
        _check_same(names, number, one[0], other[0])
        if (ours := _rewards(one)) and (theirs := _rewards(other)):
            source = one[0].get("data_source") or UNKNOWN_SOURCE
            means = statistics.fmean(ours), statistics.fmean(theirs)
            prompt = _end(one[0].get("prompt"), same_end)
            pairs.append(Pair(number, prompt, source, *means))
    return pairs


def _compared(
    names: tuple[str, str], first: Answers, second: Answers, pairs: Sequence[Pair]
) -> Comparison:
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
    paired = {pair.number for pair in pairs}
    return Comparison(
        a=names[0],
        b=names[1],
        overall=MeanDifference.of(pairs),
        by_source={name: MeanDifference.of(group) for name, group in by_source.items()},
        changed=sorted(changed, key=lambda pair: -abs(pair.difference)),
        only_in_a=sorted(first.keys() - second.keys()),
        only_in_b=sorted(second.keys() - first.keys()),
        without_reward=sorted((first.keys() & second.keys()) - paired),
        unscored=(unscored[0], unscored[1]),
        scored_by=(scored_by[0], scored_by[1]),
    )


def _end(prompt: object, same: str) -> str:
    """The end of a prompt's text, where its question stands, or of its last message's. same: the
    end of all, as of a chat template, which is left out."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        prompt = prompt[-1].get("content")
        if isinstance(prompt, list):  # with images
            prompt = " ".join(str(part["text"]) for part in prompt if part.get("text"))
    words = " ".join(str(prompt or "").removesuffix(same)[-4 * PREVIEW :].split())
    return words if len(words) <= PREVIEW else f"... {words[-PREVIEW:]}"


def _check_same(names: tuple[str, str], number: int, one: AnswerRow, other: AnswerRow) -> None:
    for name in ("prompt", "data_source", "ground_truth"):
        if one.get(name) != other.get(name):
            raise ConfigError(
                f"{names[0]} and {names[1]} are of different data: the {name} of row {number} is "
                f"{shown(one.get(name))} in the first and {shown(other.get(name))} in the second. "
                "Compare runs on the same data."
            )


def _rewards(rows: Sequence[AnswerRow]) -> list[float]:
    return [row["reward"] for row in rows if row["reward"] is not None]
