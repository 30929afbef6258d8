"""Builds what a verl trainer takes: the rows of one call as a `DataProto` of fixed widths.

In: the backend's outputs, their prompts, and the caller's own columns. Out: a `DataProto`; those of
different calls can be concatenated. Knows nothing of text or rewards.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from _inf.errors import ConfigError, PromptError, shown
from _inf.request.prompts import as_list
from _inf.request.sampling import Sampling
from _inf.response.decode import decoded_text, whole_response
from _inf.response.output import GenerationOutput
from _inf.types import Prompt, RequestOutput, Tokenizer, Trace

OTHER_LOGPROBS = (
    "the server's log probs are of another definition with these parameters; use temperature 1 "
    "without penalties, or another backend."
)
# The names of our own columns, with and without tools.
TENSORS = (
    "prompts",
    "responses",
    "response_mask",
    "input_ids",
    "attention_mask",
    "position_ids",
    "rollout_log_probs",
)
NON_TENSORS = (
    "uid",
    "completions",
    "prompt_index",
    "finish_reason",
    "weight_version",
    "messages",
    "reward_scores",
    "__num_turns__",
)


def check_batch(prompts: Sequence[Prompt], sampling: Sampling, response_length: int) -> None:
    """Refuse answers that could be wider than the batch, equal samples, and an empty batch."""
    if not prompts:
        raise PromptError("prompts: none; a batch has at least one row.")
    if why := sampling.same_samples:
        raise ConfigError(why)
    for index, params in enumerate(sampling.params):
        if params.max_tokens > response_length:
            raise ConfigError(
                f"max_tokens: {params.max_tokens} for prompt {index} is above {response_length}, "
                "the width of a batch; lower it or raise rollout.response_length."
            )


def given_columns(uid: object, extra: object, prompts: int) -> dict[str, Any]:
    """Return the caller's columns, checked, as numpy arrays by name; one value per prompt.

    uid: None gives each prompt a new id. An array keeps its dtype, which verl's `union` compares.
    """
    if not isinstance(extra, Mapping | None):
        raise ConfigError.of("extra", f"{shown(extra)} is not a mapping of column names to values.")
    uid = [str(uuid.uuid4()) for _ in range(prompts)] if uid is None else uid
    columns = {"uid": _given(uid, "uid", prompts)}
    for name, values in (extra or {}).items():
        if not isinstance(name, str):
            raise ConfigError(f"extra: {shown(name)} is not a column's name; it must be a str.")
        if name in (*TENSORS, *NON_TENSORS):
            advice = "use uid= for it" if name == "uid" else "give it another name"
            raise ConfigError.of(f"extra.{name}", f"the batch has a column of that name; {advice}.")
        columns[name] = _given(values, f"extra.{name}", prompts)
    for index, value in enumerate(columns["uid"]):
        if not isinstance(value, Hashable):
            raise ConfigError.of(
                f"uid[{index}]", f"{shown(value)} cannot identify a group; give a string."
            )
    return columns


def column(values: Sequence[Any]) -> Any:
    """Return a one-dimensional numpy array of Python objects of any lengths."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _given(values: Any, where: str, prompts: int) -> Any:
    """Check one column, which has a value per prompt."""
    import numpy as np

    array = isinstance(values, np.ndarray) and values.ndim > 0
    listed = values if array else as_list(values)
    if not array and (not isinstance(listed, Sequence) or isinstance(listed, str | bytes)):
        raise ConfigError.of(where, f"{shown(values)} is not a list of values, one per prompt.")
    if len(listed) != prompts:
        raise ConfigError.of(where, f"{len(listed)} values for {prompts} prompts; give one each.")
    return values if array else column(listed)


def trainer_batch(
    rows: Sequence[RequestOutput],
    prompts: Sequence[Prompt],
    output: GenerationOutput,
    pad: int,
    widths: tuple[int, int],
    given: Mapping[str, Any],
) -> Any:
    """Build the batch. `rows` are prompt-major; `widths`: tokens of the prompts and the responses;
    `given`: columns with a value per prompt, repeated for its rows."""
    if None in output.logprobs:
        raise ConfigError(f"rollout_batch(): {OTHER_LOGPROBS}")
    n = len(rows) // len(prompts)
    prompt_ids = [prompts[row // n].token_ids for row in range(len(rows))]
    answers = [whole_response(row) for row in rows]
    return data_proto(prompt_ids, answers, pad, widths, _columns(output, given, n))


def traces_batch(
    traces: Sequence[Trace],
    rewards: Sequence[float] | None,
    tokenizer: Tokenizer,
    widths: tuple[int, int],
) -> Any:
    """Build the same batch of a served engine's traces; those with equal prompts have one `uid`.

    rewards: one per trace; None takes the traces' own.
    """
    if not traces:
        raise ConfigError.of("traces", "none; a batch has at least one row.")
    if rewards is not None and len(rewards) != len(traces):
        raise ConfigError.of("rewards", f"{len(rewards)} for {len(traces)} traces; give one each.")
    names = ("rollout.prompt_length", "rollout.response_length")
    for index, trace in enumerate(traces):
        for ids, most, name in zip(
            (trace.prompt_token_ids, trace.token_ids), widths, names, strict=True
        ):
            if len(ids) > most:
                raise ConfigError(
                    f"traces[{index}]: its {len(ids)} tokens are above {most}, the width of a "
                    f"batch; raise {name}."
                )
        if any(map(math.isnan, trace.logprobs)):
            raise ConfigError.of(f"traces[{index}]", OTHER_LOGPROBS)
    given = [trace.reward for trace in traces] if rewards is None else list(rewards)
    prompts = [tuple(trace.prompt_token_ids) for trace in traces]
    order = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
    uids = [str(uuid.uuid4()) for _ in order]
    columns: dict[str, list[Any]] = {
        "uid": [uids[order[prompt]] for prompt in prompts],
        "completions": [_last_answer(trace, tokenizer) for trace in traces],
        "prompt_index": [order[prompt] for prompt in prompts],
        "finish_reason": [trace.finish_reasons[-1] for trace in traces],
        "weight_version": [trace.weight_versions[-1] for trace in traces],
        "messages": [{"messages": trace.messages} for trace in traces],
        "reward_scores": [{} if reward is None else {"reward": reward} for reward in given],
        "__num_turns__": [len(trace.finish_reasons) for trace in traces],
    }
    return data_proto(
        [trace.prompt_token_ids for trace in traces],
        [(trace.token_ids, trace.response_mask, trace.logprobs) for trace in traces],
        tokenizer.pad_token_id,
        widths,
        {name: column(values) for name, values in columns.items()},
    )


def _last_answer(trace: Trace, tokenizer: Tokenizer) -> str:
    """The last answer's text; that of a trace without messages is decoded."""
    if trace.messages:
        return str(trace.messages[-1]["content"])
    mask = trace.response_mask
    begin = max((index for index, bit in enumerate(mask) if not bit), default=-1) + 1
    return decoded_text(trace.token_ids[begin:], tokenizer, skip_special_tokens=True)


def data_proto(
    prompt_ids: Sequence[list[int]],
    answers: Sequence[tuple[list[int], list[int], list[float]]],
    pad: int,
    widths: tuple[int, int],
    columns: Mapping[str, Any],
) -> Any:
    """Build the batch of prompts and of what follows them: ids, mask and log probs."""
    import torch
    from verl import DataProto

    left, right = widths
    before = torch.tensor([[pad] * (left - len(ids)) + ids for ids in prompt_ids])
    after = torch.tensor([ids + [pad] * (right - len(ids)) for ids, _, _ in answers])
    seen = [
        [0] * (left - len(ids)) + [1] * (len(ids) + len(more)) + [0] * (right - len(more))
        for ids, (more, _, _) in zip(prompt_ids, answers, strict=True)
    ]
    attention = torch.tensor(seen)
    tensors = {
        "prompts": before,
        "responses": after,
        "response_mask": torch.tensor([mask + [0] * (right - len(mask)) for _, mask, _ in answers]),
        "input_ids": torch.cat([before, after], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0),
        "rollout_log_probs": torch.tensor(
            [logprobs + [0.0] * (right - len(logprobs)) for _, _, logprobs in answers]
        ),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=dict(columns))


def _columns(output: GenerationOutput, given: Mapping[str, Any], n: int) -> dict[str, Any]:
    about = output.metadata
    columns: dict[str, list[Any]] = {
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
    repeated = {name: values.repeat(n, axis=0) for name, values in given.items()}
    return {**repeated, **{name: column(values) for name, values in columns.items()}}
