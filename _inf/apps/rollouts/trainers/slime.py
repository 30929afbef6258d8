"""slime 0.2 to 0.3.1 write one file for each rollout, if `--save-debug-rollout-data
FOLDER/{rollout_id}.pt` is given, or `--dump-details FOLDER` (then `FOLDER/rollout_data/`):
`torch.save` of `rollout_id` and `samples`, each `Sample.to_dict()`
(`slime/observability/rollout_data_utils.py` and `slime/utils/types.py` at 624b824a). Those of an
evaluation have `eval_` before the number."""

from __future__ import annotations

from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.trainers.reader import SCORE_IS, Piece, Reader, finite, listed, other_keys
from _inf.errors import ConfigError
from _inf.types import JSON

LOGPROBS = "rollout_log_probs"  # of the engine; `teacher_log_probs` stays in `extra`
TAKEN = ("prompt", "response", "label", "status", "reward", "group_index")
OF_IDS = ("tokens", "response_length", "loss_mask", LOGPROBS)
# How an answer ended, in the words of the engines; `pending` and `failed` stay as they are.
FINISH = {"completed": "stop", "truncated": "length", "aborted": "abort"}


def _read(file: Piece, _: str) -> list[Rollout]:
    return [
        _rollout(sample, file["rollout_id"], str(number))
        for number, sample in enumerate(file["samples"], 1)
    ]


def _rollout(sample: JSON, step: int, row_id: str) -> Rollout:
    if "response" not in sample:
        raise ConfigError(
            f"sample {row_id} has no response: its keys are {', '.join(sample)}; what "
            "--save-debug-train-data writes has no text; name the files of "
            "--save-debug-rollout-data."
        )
    reward, ids = sample.get("reward"), _ids(sample)
    known = {key: value for key, value in sample.items() if value is not None}
    status = str(sample.get("status"))
    scores = reward if isinstance(reward, dict) else None
    left = {} if reward is None or finite(reward) is not None else {"score": reward}
    if scores:  # `--reward-key` names the one that is trained with, and the file does not have it
        left = {SCORE_IS: f"none, as rewards are {listed(scores)}"}
    return Rollout(
        row_id=row_id,
        completion=sample["response"],
        reward=finite(reward),
        reward_scores=scores,
        finish_reason=FINISH.get(status, status),
        uid=sample.get("group_index"),
        **ids,
        extra={
            "step": step,
            "prompt": sample.get("prompt"),
            "ground_truth": sample.get("label"),
            **left,
            **other_keys(known, (*TAKEN, *OF_IDS) if ids else TAKEN),
        },
    )


def _ids(sample: JSON) -> JSON:
    """Return the ids with their mask and log probs, where there are as many of each."""
    tokens, length = sample.get("tokens"), sample.get("response_length") or 0
    mask, logprobs = sample.get("loss_mask"), sample.get(LOGPROBS)
    if mask is None:
        mask = [1] * length
    sizes = {len(each) for each in (mask, logprobs) if isinstance(each, list)}
    if not isinstance(tokens, list) or len(tokens) < length or sizes != {length}:
        return {}
    begin = len(tokens) - length
    return {
        "prompt_token_ids": tokens[:begin],
        "response_ids": tokens[begin:],
        "response_mask": mask,
        "logprobs": logprobs,
    }


SLIME = Reader(
    "slime",
    ".pt",
    ("rollout_id", "samples"),
    _read,
    ("rollout_data/*.pt", "*.pt"),
    apart=("*eval_*",),
)
