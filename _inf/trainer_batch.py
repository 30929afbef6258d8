"""What a verl trainer consumes: the rows of one call as a `DataProto` of fixed widths.

In: the rollout's rows (`_inf.upstream.engine.Row`), the prompts they answer. Out: a `DataProto`
whose batches concatenate, whatever their prompts and answers. Knows nothing of text or rewards.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from _inf.batch import column
from _inf.errors import ConfigError, PromptError
from _inf.output import GenerationOutput
from _inf.tokens import Prompt


def check_batch(
    prompts: Sequence[Prompt], max_tokens: Sequence[int], widths: tuple[int, int]
) -> None:
    """Refuse answers that could be wider than the batch, and a batch of no rows."""
    if not prompts:
        raise PromptError("prompts: none; a batch has at least one row.")
    for index, most in enumerate(max_tokens):
        if most > widths[1]:
            raise ConfigError(
                f"max_tokens: {most} for prompt {index} is above {widths[1]}, the width of "
                "a batch; lower it or raise rollout.response_length."
            )


def trainer_batch(
    rows: Sequence[Any],
    prompts: Sequence[Prompt],
    output: GenerationOutput,
    pad: int,
    widths: tuple[int, int],
) -> Any:
    """`rows` are prompt-major; `widths`: of the prompts and of the responses, in tokens."""
    import torch

    from _inf.upstream.rollout import DataProto

    n = len(rows) // len(prompts)
    asked = [prompts[row // n].token_ids for row in range(len(rows))]
    said = [_said(row) for row in rows]
    left, right = widths
    before = torch.tensor([[pad] * (left - len(ids)) + ids for ids in asked])
    after = torch.tensor([ids + [pad] * (right - len(ids)) for ids, _, _ in said])
    seen = [
        [0] * (left - len(ids)) + [1] * (len(ids) + len(more)) + [0] * (right - len(more))
        for ids, (more, _, _) in zip(asked, said, strict=True)
    ]
    attention = torch.tensor(seen)
    tensors = {
        "prompts": before,
        "responses": after,
        "response_mask": torch.tensor([mask + [0] * (right - len(mask)) for _, mask, _ in said]),
        "input_ids": torch.cat([before, after], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "rollout_log_probs": torch.tensor(
            [logprobs + [0.0] * (right - len(logprobs)) for _, _, logprobs in said]
        ),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=_columns(output, len(prompts), n))


def _said(row: Any) -> tuple[list[int], list[int], list[float]]:
    """Everything after the prompt, 1 where the model sampled it, and its log probs."""
    if (talk := row.transcript) is not None:
        return talk.ids, talk.mask, talk.logprobs
    return row.token_ids, [1] * len(row.token_ids), row.logprobs


def _columns(output: GenerationOutput, prompts: int, n: int) -> dict[str, Any]:
    uids = [str(uuid.uuid4()) for _ in range(prompts)]
    about = output.metadata
    columns: dict[str, list[Any]] = {
        "uid": [uids[row["prompt_index"]] for row in about],
        "completions": output.completions,
        **{
            name: [row[name] for row in about]
            for name in ("prompt_index", "finish_reason", "weight_version")
        },
    }
    if output.messages is not None:
        columns["messages"] = [{"messages": messages} for messages in output.messages]
        columns["reward_scores"] = [row["reward_scores"] for row in about]
        columns["__num_turns__"] = [row["num_turns"] for row in about]
    return {name: column(values) for name, values in columns.items()}
