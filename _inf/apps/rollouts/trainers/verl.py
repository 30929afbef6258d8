"""verl 0.6.1 to 0.9 write `trainer.rollout_data_dir/STEP.jsonl` and
`trainer.validation_data_dir/STEP.jsonl` (`_dump_generations` of `trainer/ppo/ray_trainer.py`): the
keys `input`, `output`, `gts`, `score`, `step`, and those that the reward function returned."""

from __future__ import annotations

from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.trainers.reader import Piece, Reader, finite, other_keys


def _read(row: Piece, row_id: str) -> list[Rollout]:
    output, reward = row["output"], finite(row["score"])
    taken = {"input", "output", "gts"} | ({"score"} if reward is not None else set())
    return [
        Rollout(
            row_id=row_id,
            completion=output if isinstance(output, str) else str(output),
            reward=reward,
            extra={
                "prompt": row["input"],
                "ground_truth": row.get("gts"),
                **other_keys(row, taken),
            },
        )
    ]


VERL = Reader("verl", ".jsonl", ("input", "output", "score"), _read, ("*.jsonl",))
