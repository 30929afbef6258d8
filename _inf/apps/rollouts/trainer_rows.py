"""Reads the rows that a trainer writes of its samples, which hold text and no ids.

verl 0.6.1 to 0.9 write `trainer.rollout_data_dir/STEP.jsonl` and
`trainer.validation_data_dir/STEP.jsonl` (`_dump_generations` of `trainer/ppo/ray_trainer.py`): the
keys `input`, `output`, `gts`, `score`, `step`, and those that the reward function returned.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from _inf.apps.rollouts.rollout import Rollout

NEEDED = ("input", "output", "score")
_OWN = {*(field.name for field in dataclasses.fields(Rollout)), "prompt", "ground_truth"}


def is_of_verl(row: Mapping[str, object]) -> bool:
    """Whether it has verl's keys; a reward function may have added any others."""
    return all(name in row for name in NEEDED)


def of_verl(row: Mapping[str, object], row_id: str) -> Rollout:
    """Return verl's row. Its score is the reward; if it is no number there is none, and the score
    stays in `extra`, as all other keys do (with `_` after a name that a `Rollout` has)."""
    output, reward = row["output"], finite(row["score"])
    left = {
        key: value
        for key, value in row.items()
        if key not in ("input", "output", "gts") and (key != "score" or reward is None)
    }
    return Rollout(
        row_id=row_id,
        completion=output if isinstance(output, str) else str(output),
        reward=reward,
        extra={"prompt": row["input"], "ground_truth": row.get("gts")}
        | {f"{key}_" if key in _OWN else key: value for key, value in left.items()},
    )


def finite(value: object) -> float | None:
    """Return a finite number, and true and false as 1 and 0; None for anything else."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # of an int
        return None
    return number if math.isfinite(number) else None
