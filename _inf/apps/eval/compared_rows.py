"""Reads what `inf eval compare` compares: the rows of `inf eval`, and the samples of a trainer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

from _inf.apps.eval.metrics import AnswerRow
from _inf.apps.json_lines import first_row, json_lines
from _inf.apps.runs.run import load_run
from _inf.errors import ConfigError, shown

Answers: TypeAlias = dict[int, list[AnswerRow]]  # to each prompt, by its number
Steps: TypeAlias = dict[int | None, Answers]  # of a folder by step; of a file all, under None


def read_steps(
    path: Path, prompts: dict[tuple[str, str], int], notes: list[str], reward: str | None = None
) -> Steps:
    """Read a file of `inf eval`, where a prompt's number is that of the data's row; or a trainer's
    folder or file, where prompts with the same text and ground truth have the same number.

    prompts: the numbers of these; new ones are added. notes: of what is left out; they are added.
    reward: the name of a trainer's figure that is compared; None: each row's reward.
    """
    if path.is_file() and _is_of_eval(path):
        if reward is not None:
            raise ConfigError.of(
                "--reward", f"{path} is of inf eval, whose rows have one reward; leave it out."
            )
        return {None: _of_eval(path)}
    run = load_run(path, reward=reward)
    notes += [note for note in run.notes if note not in notes]
    steps: Steps = defaultdict(lambda: defaultdict(list))
    table = run.to_pandas()
    for step, prompt, row in zip(table["step"], table["prompt"], run.rows, strict=True):
        text, truth = run.index.prompts[prompt], str(row.extra.get("ground_truth"))
        source = row.extra.get("data_source")
        number = prompts.setdefault((text, truth), len(prompts))
        answer: AnswerRow = {
            "number": number,
            "prompt": text,
            "data_source": None if source is None else str(source),
            "ground_truth": truth,
            "reward": row.reward,
            "scored_by": "the trainer",
        }
        steps[step if path.is_dir() else None][number].append(answer)
    return steps


def _is_of_eval(path: Path) -> bool:
    """Whether the file's first row has the number of a row of the data."""
    return "number" in first_row(path)


def _of_eval(path: Path) -> Answers:
    """Read the rows; of several of a line the last counts."""
    rows: dict[int, AnswerRow] = {}
    for place, row in json_lines(path):
        _check_row(row, f"{path}, line {place}")
        rows[row.get("line", place)] = row
    answers: Answers = defaultdict(list)
    for row in rows.values():
        answers[row["number"]].append(row)
    return answers


def _check_row(row: object, place: str) -> None:
    if not isinstance(row, dict) or not isinstance(row.get("number"), int) or "reward" not in row:
        raise ConfigError(
            f"{place}: a row of `inf eval` has number and reward; this is {shown(row)}."
        )
    reward = row["reward"]
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise ConfigError(f"{place}: reward must be a number or null, not {shown(reward)}.")
