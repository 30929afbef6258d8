"""Tasks of reasoning-gym (https://github.com/open-thought/reasoning-gym) as rows of verl's form,
and their own scores as a reward function.

The questions are made in a process of their own, with fixed seeds: some tasks ask in the order of a
set, or draw from generators that `seed` does not reach, and would ask otherwise after each start,
so that no run could be resumed.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from _inf.apps.eval.dataset import verl_row
from _inf.errors import ConfigError, InferenceError, did_you_mean, error_text
from _inf.runtime.extras import require
from _inf.types import python_value

PREFIX = "rg:"
FORM = "rg:NAME[,NAME]"
SOURCE = "reasoning_gym/"  # before a task's name, in data_source
SIZE, SEED = 500, 42  # the package's default size; the seed of its README
MAX_SEED = 2**32 - 1  # numpy's
SECONDS = 600.0
PROGRAM = (
    "from _inf.apps.eval.reasoning_tasks import print_tasks; print_tasks({names}, {size}, {seed})"
)
PROMPT = "default"  # of the package's `SYSTEM_PROMPTS`
NO_TASK = "composite"  # a mixture of tasks, which asks nothing without a config
GRIDS = ("arc_agi", "rearc")  # their scores compare with a tuple of tuples


@dataclasses.dataclass(frozen=True)
class ScoreAnswer:
    """The `score_answer` of the task that asked, for the text that the package's `extract_answer`
    finds in the last <answer> tags. version: the package's, so that another version scores the
    stored answers again.

    In addition to `score` it returns `answered` (1 if there are such tags), `pred` (their text),
    the question's `metadata`, and `raised` if the score raised an exception; then it is 0.
    """

    version: str

    def __call__(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: str | None,
        extra_info: Mapping[str, Any],
    ) -> dict[str, Any]:
        from reasoning_gym.utils import extract_answer

        task, metadata = data_source.removeprefix(SOURCE), extra_info["metadata"]
        answer = extract_answer(solution_str)
        found = {"answered": float(answer is not None), "pred": answer or "", "metadata": metadata}
        entry = {"question": extra_info["question"], "answer": ground_truth}
        entry["metadata"] = copy.deepcopy(metadata)  # some scores write into it
        if task in GRIDS:
            entry["metadata"]["output"] = tuple(map(tuple, metadata["output"]))
        try:
            return {"score": float(_score_answer(task)(answer, entry)), **found}
        except Exception as failure:  # as of an answer that is no number
            return {"score": 0.0, **found, "raised": error_text(failure)}


@functools.cache
def _score_answer(task: str) -> Callable[[str | None, dict[str, Any]], float]:
    from reasoning_gym import get_score_answer_fn

    return get_score_answer_fn(task)  # type: ignore[no-any-return]


def load_tasks(source: str, size: int, seed: int) -> tuple[list[dict[str, Any]], ScoreAnswer]:
    """Return the rows of "rg:NAME[,NAME]", `size` of each task, and what scores their answers.

    A task's questions are those of `reasoning_gym.create_dataset(NAME, size=size, seed=seed)`.
    Raises `ConfigError` where the package, or a task of that name, is missing, and
    `InferenceError` if the questions cannot be made.
    """
    names = [name.strip() for name in source.removeprefix(PREFIX).split(",")]
    require("reasoning-gym", f"{source}: ")
    if len(set(names)) < len(names):
        raise ConfigError(f"{source}: a task is named twice; name each once.")
    made = _made(source, names, size, seed)
    for name in names:
        if name not in made["names"]:
            meant = did_you_mean(name, made["names"]) or f". It has {', '.join(made['names'])}"
            raise ConfigError(f"{source}: reasoning-gym has no task {name!r}{meant}")
    return [
        _row(name, index, entry, made["prompt"])
        for name in names
        for index, entry in enumerate(made["tasks"][name])
    ], ScoreAnswer(made["version"])


def _row(name: str, index: int, entry: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    question = entry["question"]
    extra = {"index": index, "question": question, "metadata": entry["metadata"]}
    row = verl_row(SOURCE + name, question, entry["answer"], extra)
    asked = [{"role": "system", "content": prompt}, *row["prompt"]]
    return row | {"ability": "reasoning", "prompt": asked}


def _made(source: str, names: list[str], size: int, seed: int) -> dict[str, Any]:
    """Return what `print_tasks` prints in a process of its own."""
    program = PROGRAM.format(names=names, size=size, seed=seed)
    path = os.pathsep.join(filter(None, sys.path))
    try:
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise InferenceError(
            f"{source}: the questions were not made within {SECONDS:g} s; ask for fewer (--size)."
        ) from None
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        raise InferenceError(
            f"{source}: reasoning-gym made no questions: {lines[-1] if lines else ended.returncode}"
        )
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


def print_tasks(names: list[str], size: int, seed: int) -> None:
    """Run as a process: print as JSON the questions of the tasks that the package has."""
    out, sys.stdout = sys.stdout, sys.stderr
    from importlib.metadata import version

    import numpy
    from reasoning_gym import create_dataset
    from reasoning_gym.factory import DATASETS
    from reasoning_gym.utils import SYSTEM_PROMPTS

    random.seed(seed)  # `codeio` draws from these two
    numpy.random.seed(seed)
    named = sorted(DATASETS.keys() - {NO_TASK})
    tasks = {}
    for name in names if set(names) <= set(named) else ():
        dataset = create_dataset(name, size=size, seed=seed)
        tasks[name] = [python_value(dataset[index]) for index in range(size)]
    made = {"names": named, "tasks": tasks, "prompt": SYSTEM_PROMPTS[PROMPT]}
    json.dump(made | {"version": version("reasoning-gym")}, out)
