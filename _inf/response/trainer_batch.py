"""Builds batches for a verl trainer: a `DataProto` of fixed widths, so that batches concatenate."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.errors import ConfigError, PromptError, shown
from _inf.parts.found import PARTS
from _inf.request.prompts import object_array
from _inf.request.sampling import Sampling
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.types import Prompt, Tokenizer, as_list

if TYPE_CHECKING:
    import torch
    from verl import DataProto

    from _inf.parts.part import Part

OTHER_LOGPROBS = (
    "with these parameters the server computes its log probs from other logits; use temperature 1 "
    "without penalties, or another backend."
)
# The names of our own columns, with and without tools.
TENSORS = (
    "prompts responses response_mask input_ids attention_mask position_ids rollout_log_probs"
).split()
NON_TENSORS = (
    "uid completions prompt_index finish_reason weight_version weight_versions messages "
    "reward_scores __num_turns__"
).split()


def check_batch(prompts: Sequence[Prompt], sampling: Sampling, response_length: int) -> None:
    """Refuse an empty batch, answers that could be wider than the batch, and equal samples."""
    if not prompts:
        raise PromptError("prompts: none; a batch has at least one row.")
    if "on_error" in sampling.asked:
        raise ConfigError.of("on_error", "a batch needs all of its prompts; leave it out.")
    if why := sampling.same_samples:
        raise ConfigError(why)
    for index, params in enumerate(sampling.params):
        if params.max_tokens > response_length:
            raise ConfigError.of(
                "max_tokens",
                f"{params.max_tokens} for prompt {index} is above {response_length}, "
                "the width of a batch; lower it or raise rollout.response_length.",
            )


def given_columns(uid: object, extra: object, prompts: int) -> dict[str, Any]:
    """Check the caller's columns; return them as numpy arrays by name, one value per prompt.

    uid: None gives each prompt a new id. An array keeps its dtype, because verl's `union` compares
    dtypes.
    """
    if not isinstance(extra, Mapping | None):
        raise ConfigError.of("extra", f"{shown(extra)} is not a mapping of column names to values.")
    uid = [str(uuid.uuid4()) for _ in range(prompts)] if uid is None else uid
    columns = {"uid": _given(uid, "uid", prompts)}
    for name, values in (extra or {}).items():
        if not isinstance(name, str):
            raise ConfigError.of(
                "extra", f"{shown(name)} is not a column's name; it must be a str."
            )
        if name in TENSORS + NON_TENSORS:
            advice = "use uid= for it" if name == "uid" else "give it another name"
            raise ConfigError.of(f"extra.{name}", f"the batch has a column of that name; {advice}.")
        columns[name] = _given(values, f"extra.{name}", prompts)
    for index, value in enumerate(columns["uid"]):
        if not isinstance(value, Hashable):
            raise ConfigError.of(
                f"uid[{index}]", f"{shown(value)} cannot identify a group; give a string."
            )
    return columns


def _given(values: Any, where: str, prompts: int) -> Any:
    import numpy as np

    array = isinstance(values, np.ndarray) and values.ndim > 0
    listed = values if array else as_list(values)
    if not array and (not isinstance(listed, Sequence) or isinstance(listed, str | bytes)):
        raise ConfigError.of(where, f"{shown(values)} is not a list of values, one per prompt.")
    if len(listed) != prompts:
        raise ConfigError.of(where, f"{len(listed)} values for {prompts} prompts; give one each.")
    return values if array else object_array(listed)


def trainer_batch(
    output: GenerationOutput,
    pad: int,
    widths: tuple[int, int],
    given: Mapping[str, Any],
) -> DataProto:
    """Build the batch. widths: of prompts and responses, in tokens. given: columns with a value per
    prompt, which is repeated for its rows."""
    if None in output.logprobs:
        loop = output.rows[output.logprobs.index(None)].metadata.get("agent_loop")
        unsampled = f"agent loop {loop} returned no log probs, and ids that were not sampled."
        why = unsampled if loop else OTHER_LOGPROBS
        raise ConfigError(f"rollout_batch(): {why}")
    rows, n = output.rows, len(output) // len(given["uid"])
    columns: dict[str, Sequence[object]] = {
        "completions": output.completions,
        "prompt_index": [row.prompt_index for row in rows],
        "finish_reason": [row.finish_reason for row in rows],
        "weight_version": [row.weight_version for row in rows],
        "weight_versions": [[list(each) for each in row.weight_versions] for row in rows],
    }
    if transcripts := [row.transcript for row in rows if row.transcript is not None]:
        if transcripts[0].agent_loop is None:  # agent loops report no messages
            columns["messages"] = [{"messages": transcript.messages} for transcript in transcripts]
        else:
            columns["extra_fields"] = [dict(transcript.extra_fields) for transcript in transcripts]
        columns["reward_scores"] = [transcript.reward_scores for transcript in transcripts]
        columns["__num_turns__"] = [transcript.num_turns for transcript in transcripts]
    repeated = {name: values.repeat(n, axis=0) for name, values in given.items()}
    prompts = [row.prompt_token_ids or [] for row in rows]
    return data_proto(prompts, [row.response for row in rows], pad, widths, {**repeated, **columns})


def with_parts(
    batch: DataProto, rows: Sequence[GenerationRow], prompts: Sequence[Prompt], tokenizer: Tokenizer
) -> DataProto:
    """The batch with the columns of what the content of its rows asks of parts."""
    n = len(rows) // len(prompts)
    asked: list[Sequence[Part]] = []
    for number, row in enumerate(rows):
        own = prompts[number // n] if row.transcript is None else row.transcript
        asked.append(own.parts)
    kinds = [kind for kind in PARTS if kind.in_every_batch(tokenizer)]
    for kind in dict.fromkeys([*kinds, *(type(part) for parts in asked for part in parts)]):
        found = ([part for part in parts if isinstance(part, kind)] for parts in asked)
        kind.add_to_batch(batch, [next(iter(own), None) for own in found], tokenizer)
    return batch


def data_proto(
    prompts: Sequence[list[int]],
    responses: Sequence[tuple[list[int], list[int], list[float] | None]],
    pad: int,
    widths: tuple[int, int],
    columns: Mapping[str, object],
) -> DataProto:
    """Build a batch. responses: the ids after each prompt, their mask and log probs; without log
    probs for all rows, the batch has none. columns: arrays, or lists, which become arrays."""
    import torch
    from verl import DataProto
    from verl.utils.model import compute_position_id_with_mask

    def padded(rows: Iterable[Sequence[float]], value: float) -> torch.Tensor:
        return torch.tensor([[*row, *[value] * (widths[1] - len(row))] for row in rows])

    before = torch.tensor([[pad] * (widths[0] - len(ids)) + ids for ids in prompts])
    after = padded((ids for ids, _, _ in responses), pad)
    asked = torch.tensor([[0] * (widths[0] - len(ids)) + [1] * len(ids) for ids in prompts])
    seen = torch.cat([asked, padded(([1] * len(ids) for ids, _, _ in responses), 0)], dim=1)
    tensors = {
        "prompts": before,
        "responses": after,
        "response_mask": padded((mask for _, mask, _ in responses), 0),
        "input_ids": torch.cat([before, after], dim=1),
        "attention_mask": seen,
        "position_ids": compute_position_id_with_mask(seen),
    }
    logprobs = [values for _, _, values in responses if values is not None]
    if len(logprobs) == len(responses):
        tensors["rollout_log_probs"] = padded(logprobs, 0.0)
    arrays = {name: object_array(v) if isinstance(v, list) else v for name, v in columns.items()}
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)
