"""Makes `Rollout`s of a `GenerationOutput`, a `DataProto` or a session's traces; writes them."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from _inf.apps.rollouts.rollout import COLUMNS, Rollout
from _inf.apps.rollouts.traces import Trace, row_of_trace
from _inf.errors import ConfigError, shown
from _inf.parts.found import ROW_FIELDS
from _inf.parts.kept import kept_column
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.response.token_texts import TokenTexts
from _inf.runtime.files import check_output, write_text
from _inf.types import JSON, Tokenizer

LOGPROBS = "rollout_log_probs"
# The tensors without which a `DataProto` has no rows.
TENSORS = ("input_ids", "attention_mask", "responses", "response_mask")
# Keys of a row with turns that the form has under the same names.
OF_TURNS = (
    *("messages", "num_turns", "reward_scores", "limit"),
    *("agent_loop", "unsampled_ids", "unsampled_at", "extra_fields"),
)
SCORES = ("token_level_scores", "rm_scores")  # verl's names for a reward at each token


def as_rollouts(rows: object, tokenizer: Tokenizer = None) -> list[Rollout]:
    """Return the rows as `Rollout`s.

    rows: a `GenerationOutput`, one of its rows, a `DataProto` with `rollout_batch`'s columns, or a
        list of traces (`server.traces(name)`), of `EvalReport.rows` or of `Rollout`s.
    tokenizer: `engine.tokenizer`, for the text of each token. Without it `inf show` shows ids.

    Other tensors of a `DataProto`, and columns that JSON cannot hold, are left out;
    `DataProto.save_to_disk` keeps all. Raises `ConfigError` for anything else.
    """
    if hasattr(rows, "non_tensor_batch") and hasattr(rows, "batch"):
        rows = rows_of_batch(rows)
    elif isinstance(rows, GenerationRow):
        rows = [rows]
    elif not isinstance(rows, Sequence | GenerationOutput) or isinstance(rows, str | bytes):
        raise ConfigError(
            f"rows: {shown(rows)} is not a GenerationOutput, a DataProto, or a list of traces or "
            "rollouts."
        )
    return [_one(row, f"rows[{place}]", place, tokenizer) for place, row in enumerate(rows)]


def save_rollouts(rows: object, path: str | os.PathLike[str], tokenizer: Tokenizer = None) -> None:
    """Write `as_rollouts(rows, tokenizer)` as JSON lines; an existing file is replaced once the new
    one is complete.

    Raises `ConfigError`, with nothing written, for a value that JSON cannot keep, such as NaN.
    """
    check_output(path)
    rollouts = as_rollouts(rows, tokenizer)
    lines = [_line(rollout, f"rows[{place}]") for place, rollout in enumerate(rollouts)]
    write_text(path, "".join(lines))


def _line(rollout: Rollout, where: str) -> str:
    texts = []
    for name, value in rollout.row().items():
        try:
            texts.append(f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}")
        except (TypeError, ValueError) as failure:
            raise ConfigError(
                f"{where}: JSON cannot keep it: {name}: {failure}; leave it out or replace it."
            ) from failure
    return f"{{{', '.join(texts)}}}\n"


def _one(row: object, where: str, place: int, tokenizer: Tokenizer) -> Rollout:
    if isinstance(row, Rollout):
        row = row.row()
    elif isinstance(row, GenerationRow):
        error = row.error
        row = {
            "row_id": f"{row.prompt_index}.{row.sample_index}",
            "prompt_index": row.prompt_index,
            **answer_fields(row, tokenizer),
            **({"error": error} if error else {}),
        }
    elif isinstance(row, Trace):
        row = row_of_trace(row)
    if isinstance(row, Mapping):  # `of` refuses others
        row = _with_texts(row, tokenizer)
    return Rollout.of(row, where, str(place))


def answer_fields(answer: GenerationRow, tokenizer: Tokenizer) -> dict[str, object]:
    """The form's keys that an answer of `generate` has: ids, mask, log probs, texts, turns."""
    fields: dict[str, object] = {
        "completion": answer.completion,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "weight_version": answer.weight_version,
        "weight_versions": [list(each) for each in answer.weight_versions],
    }
    if answer.adapter is not None:
        fields["adapter"] = answer.adapter
    if answer.seed is not None:
        fields["seed"] = answer.seed
    if answer.token_ids is not None:
        ids, mask, logprobs = answer.response
        fields |= {
            "prompt_token_ids": answer.prompt_token_ids,
            "response_ids": ids,
            "response_mask": mask,
            "logprobs": logprobs,
            "pad_token_id": tokenizer and tokenizer.pad_token_id,
        }
    for part in answer.parts:
        fields |= {name: each for name, each in part.fields.items() if ROW_FIELDS[name].in_rollouts}
    if answer.transcript is not None:
        row = answer.to_dict()  # tools and loops may have put anything into a row; this is JSON
        fields |= {name: row.get(name) for name in OF_TURNS}
        if answer.transcript.agent_loop is None:  # which does not say its calls
            fields["answer_places"] = [[at.start, at.stop] for at in answer.transcript.answers]
            calls = row["executed_tool_calls"]
            fields["tool_calls"] = calls
            fields["timings"] = {"tools": sum(c["seconds"] for c in calls)} if calls else None
    fields = {name: value for name, value in fields.items() if value is not None}
    return _with_texts(fields, tokenizer)


def rows_of_batch(batch: Any, where: str = "rows", more: Sequence[str] = ()) -> list[JSON]:
    """Return the rows of a `DataProto` without padding, which its attention mask marks.

    where: begins an error. more: other tensors of the responses that it must have; each is a key.
    """
    tensors = {} if batch.batch is None else dict(batch.batch.items())
    _check_tensors(tensors, where, more)
    seen, right = tensors["attention_mask"].bool(), tensors["responses"].shape[1]
    left = seen.shape[1] - right
    widths: JSON = {"prompt_length": left, "response_length": right}
    if pads := tensors["input_ids"][~seen].tolist()[:1]:
        widths["pad_token_id"] = pads[0]
    of_responses = {name: name for name in ("response_mask", *more)}
    of_responses |= {"response_ids": "responses", "logprobs": LOGPROBS}
    scores = next((tensors[name] for name in SCORES if name in tensors), None)
    samples: collections.Counter[str] = collections.Counter()
    rows = []
    for place, (ids, kept) in enumerate(zip(tensors["input_ids"], seen, strict=True)):
        row = _known_columns(batch.non_tensor_batch, place) | widths
        row["prompt_token_ids"] = ids[:left][kept[:left]].tolist()
        for key, name in of_responses.items():
            if name in tensors:
                row[key] = tensors[name][place][kept[left:]].tolist()
        prompt = str(row.get("prompt_index", place))
        row["row_id"] = f"{prompt}.{samples[prompt]}"
        samples[prompt] += 1
        reward = (row.get("reward_scores") or {}).get("reward")
        reward = reward if scores is None else scores[place].sum().item()
        row["reward"] = None
        if isinstance(reward, int | float) and abs(reward) <= sys.float_info.max:
            row["reward"] = float(reward)
        rows.append(row)
    return rows


def _check_tensors(tensors: Mapping[str, Any], where: str, more: Sequence[str]) -> None:
    needed = [*TENSORS, *more]
    if missing := [name for name in needed if name not in tensors]:
        raise ConfigError(
            f"{where}: the batch has no column {missing[0]}; it needs {', '.join(needed)}, as "
            "rollout_batch and verl's trainer have them."
        )
    whole, answers = (tuple(tensors[name].shape) for name in ("input_ids", "responses"))
    fitting = {name: (*whole[:1], *answers[-1:]) for name in {*needed, LOGPROBS} & tensors.keys()}
    for name, shape in (fitting | {"input_ids": whole, "attention_mask": whole}).items():
        if tuple(tensors[name].shape) != shape:
            raise ConfigError(
                f"{where}: {name} has the shape {tuple(tensors[name].shape)}, which does not fit "
                f"to input_ids, {whole}, and responses, {answers}."
            )


def _known_columns(columns: Mapping[str, Any], place: int) -> JSON:
    """A row's values of the columns, as far as JSON can hold them."""
    row: JSON = {}
    for name, values in columns.items():
        value = kept_column(name, values[place])
        try:
            text = json.dumps(value, default=lambda array: array.tolist(), allow_nan=False)
        except (AttributeError, RecursionError, TypeError, ValueError):
            continue
        row[COLUMNS.get(name, name)] = json.loads(text)
    return row


def _with_texts(row: Mapping[str, Any], tokenizer: Tokenizer) -> JSON:
    """Add the text of each token, where there is a tokenizer and the row has none."""
    row = dict(row)
    pairs = (("prompt_token_ids", "prompt_texts"), ("response_ids", "response_texts"))
    for ids, texts in pairs if tokenizer is not None else ():
        if row.get(ids) is not None and row.get(texts) is None:
            row[texts] = [token.text for token in TokenTexts(tokenizer).add(row[ids])]
    return row


def with_texts(rollout: Rollout, tokenizer: Tokenizer) -> Rollout:
    """Return the row with the text of each id, where there is a tokenizer."""
    if tokenizer is None:
        return rollout
    row = _with_texts(vars(rollout), tokenizer)
    return dataclasses.replace(
        rollout, prompt_texts=row["prompt_texts"], response_texts=row["response_texts"]
    )
