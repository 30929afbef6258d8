"""SkyRL writes `trainer.export_path/dumped_evals/global_step_N_evals/DATA_SOURCE.jsonl`, if
`trainer.dump_eval_results` is set (`dump_per_dataset_eval_results` of
`skyrl/train/utils/trainer_utils.py` at a956457; the same since skyrl_train 0.2)."""

from __future__ import annotations

from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.trainers.reader import Piece, Reader, finite, other_keys

TAKEN = ("input_prompt", "output_response", "stop_reason")


def _read(row: Piece, row_id: str) -> list[Rollout]:
    score = row["score"]
    of_tokens = isinstance(score, list)
    reward = finite(sum(score) if of_tokens else score)  # the sum, as SkyRL's own metrics have it
    left = of_tokens or reward is None
    extras = row.get("env_extras")
    asked = extras.get("reward_spec") if isinstance(extras, dict) else None
    return [
        Rollout(
            row_id=row_id,
            completion=row["output_response"],
            reward=reward,
            finish_reason=row.get("stop_reason"),
            extra={
                "prompt": row["input_prompt"],
                "ground_truth": asked.get("ground_truth") if isinstance(asked, dict) else None,
                **other_keys(row, TAKEN if left else (*TAKEN, "score")),
            },
        )
    ]


SKYRL = Reader(
    "SkyRL",
    ".jsonl",
    ("input_prompt", "output_response", "score"),
    _read,
    ("global_step_*_evals/*.jsonl", "dumped_evals/global_step_*_evals/*.jsonl"),
    apart=("aggregated_results.jsonl",),  # the step's metrics
)
