"""TRL 0.28 to 1.16 write `output_dir/completions/completions_STEP.parquet`, if `log_completions` is
set (`log` of `trl/trainer/grpo_trainer.py`): the columns `step`, `prompt`, `completion`, one of
floats for each reward function, those of `log_extra`, and `advantage`. Prompts and completions are
texts, in 1.16 the messages of a conversation. `distillation_trainer.py` writes the first three."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.trainers.reader import SCORE_IS, Piece, Reader, finite, listed, other_keys
from _inf.types import JSON

FIRST = ("step", "prompt", "completion")
TOLERANCE = 1e-3  # of advantages, which are computed in float32 and divided by 1e-4 at least
SAME_REWARD = 1e-6


def _read(table: Piece, _: str) -> list[Rollout]:
    rows = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    names = _rewards(table)
    meaning: dict[str, str] = {}
    rewards = [_sum(row[name] for name in names) for row in rows]
    if len(names) > 1 and _give_advantages(rewards, rows):
        meaning = {SCORE_IS: f"the sum of {listed(names)}, which gives the advantages"}
    elif len(names) > 1:
        meaning = {SCORE_IS: f"none, as the sum of {listed(names)} does not give the advantages"}
        rewards = [None] * len(rows)
    return [
        Rollout(
            row_id=str(number),
            reward=reward,
            reward_scores={name: finite(row[name]) for name in names} or None,
            **_texts(row["prompt"], row["completion"]),
            extra={
                "prompt": _known(row["prompt"]),
                **other_keys(row, ("prompt", "completion", *names)),
                **meaning,
            },
        )
        for number, (row, reward) in enumerate(zip(rows, rewards, strict=True), 1)
    ]


def _rewards(table: Piece) -> list[str]:
    """Return the columns of floats that follow `completion`. The last of them may be of
    `log_extra`: the file does not say."""

    def may_be(name: str) -> bool:
        values = table[name]
        return name != "advantage" and all(isinstance(each, float | None) for each in values)

    after = itertools.dropwhile(lambda name: name in FIRST, table)
    return [*itertools.takewhile(may_be, after)]


def _texts(prompt: Any, completion: Any) -> JSON:
    """Return the answer as text, and the conversation, if the file has messages."""
    if isinstance(completion, str):
        return {"completion": completion}
    before, after = (
        _known(each) if isinstance(each, list) else [] for each in (prompt, completion)
    )
    said = [message for message in after if message.get("role") == "assistant"]
    return {"completion": said[-1].get("content") if said else None, "messages": before + after}


def _known(value: Any) -> Any:
    """Leave out the keys that only other messages of the table have."""
    if isinstance(value, dict):
        return {key: _known(each) for key, each in value.items() if each is not None}
    return [_known(each) for each in value] if isinstance(value, list) else value


def _sum(values: Iterable[object]) -> float | None:
    """Add as TRL does with equal `reward_weights`: what is NaN is left out."""
    known = [number for value in values if (number := finite(value)) is not None]
    return math.fsum(known) if known else None


def _give_advantages(rewards: Sequence[float | None], rows: Sequence[Piece]) -> bool:
    """Whether the advantages are those of the rewards: within each prompt's answers, both
    minus their means differ by a factor."""
    import pandas

    if not all("advantage" in row for row in rows):
        return False
    table = pandas.DataFrame({"ours": rewards, "theirs": [row["advantage"] for row in rows]})
    table = table.astype(float)[table["ours"].notna()]
    prompts = pandas.Series([str(row["prompt"]) for row in rows])[table.index]
    apart = table - table.groupby(prompts).transform("mean")
    most = apart.abs().groupby(prompts).transform("max")
    equal = most <= [SAME_REWARD, TOLERANCE]
    scaled = apart / most
    alike = (scaled["ours"] - scaled["theirs"]).abs() <= TOLERANCE
    return bool((equal["ours"] == equal["theirs"]).all() and (alike | equal["ours"]).all())


TRL = Reader("TRL", ".parquet", FIRST, _read, ("completions/*.parquet", "*.parquet"))
