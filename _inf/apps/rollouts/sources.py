"""Makes `Rollout`s of what has answers: a `GenerationOutput`, a `DataProto`, a session's traces."""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from _inf.apps.rollouts.data_proto import check_same, rows_of_data_proto
from _inf.apps.rollouts.rollout import Rollout
from _inf.errors import ConfigError, shown
from _inf.response.decode import decoded_text
from _inf.response.output import GenerationOutput, GenerationRow
from _inf.response.streaming import UNFINISHED, TextStream
from _inf.types import RequestOutput, Tokenizer, Trace

_alone: weakref.WeakKeyDictionary[Tokenizer, dict[int, str]] = weakref.WeakKeyDictionary()


def as_rollouts(rows: Any, tokenizer: Tokenizer = None) -> list[Rollout]:
    """Return the rows as `Rollout`s.

    rows: a `GenerationOutput`, one of its rows, a `DataProto` with `rollout_batch`'s columns, or a
        list of traces (`server.traces(name)`), of `EvalReport.rows` or of `Rollout`s.
    tokenizer: `engine.tokenizer`, for the text of each token. Without it `inf show` shows ids.

    Raises `ConfigError` for anything else, and for a `DataProto` that the form cannot keep exactly.
    """
    batch = rows if hasattr(rows, "non_tensor_batch") and hasattr(rows, "batch") else None
    if batch is not None:
        rows = rows_of_data_proto(batch)
    elif isinstance(rows, GenerationRow):
        rows = [rows]
    elif not isinstance(rows, Sequence | GenerationOutput) or isinstance(rows, str | bytes):
        raise ConfigError(
            f"rows: {shown(rows)} is no GenerationOutput, DataProto or list of traces or rollouts."
        )
    rollouts = [_one(row, f"rows[{place}]", place, tokenizer) for place, row in enumerate(rows)]
    if batch is not None:
        check_same(batch, rollouts)
    return rollouts


def _one(row: Any, where: str, place: int, tokenizer: Tokenizer) -> Rollout:
    if isinstance(row, Rollout):
        row = row.row()
    elif isinstance(row, GenerationRow):
        row = _of_answer(row, tokenizer)
    elif isinstance(row, Trace):
        row = _of_trace(row)
    if isinstance(row, Mapping):  # `of` refuses others
        row = with_texts(row, tokenizer)
    return Rollout.of(row, where, str(place))


def answer_fields(answer: GenerationRow, tokenizer: Tokenizer) -> dict[str, Any]:
    """The form's keys that an answer of `generate` has: ids, mask, log probs, texts, turns."""
    about = answer.metadata
    fields: dict[str, Any] = {
        "completion": answer.completion,
        "finish_reason": about["finish_reason"],
        "weight_version": about.get("weight_version"),
    }
    if answer.token_ids is not None:
        size = about.get("response_tokens", len(answer.token_ids))
        mask = about["response_mask"][:size]
        fields |= {
            "prompt_token_ids": answer.prompt_token_ids,
            "response_ids": about["response_ids"][:size],
            "response_mask": mask,
            "logprobs": _spread(answer.logprobs, mask),
            "pad_token_id": tokenizer and tokenizer.pad_token_id,
        }
    if answer.messages is not None:
        row = answer.to_dict()  # tools may have put anything into a row; this is JSON
        calls = row["executed_tool_calls"]
        fields |= {
            **{name: row[name] for name in ("messages", "num_turns", "reward_scores", "limit")},
            "tool_calls": calls,
            "timings": {"tools": sum(call["seconds"] for call in calls)} if calls else None,
        }
    known = {name: value for name, value in fields.items() if value is not None}
    return with_texts(known, tokenizer)


def _spread(logprobs: list[float] | None, mask: list[int]) -> list[float] | None:
    """Put the sampled ids' log probs to their places, and 0 to the others."""
    if logprobs is None:
        return None
    left = iter(logprobs)
    return [next(left) if bit else 0.0 for bit in mask]


def _of_answer(answer: GenerationRow, tokenizer: Tokenizer) -> dict[str, Any]:
    about = answer.metadata
    return {
        "row_id": f"{about['prompt_index']}.{about['sample_index']}",
        "prompt_index": about["prompt_index"],
        **answer_fields(answer, tokenizer),
        **({"error": about["error"]} if about.get("error") else {}),
    }


def _of_trace(trace: Trace) -> dict[str, Any]:
    row = dataclasses.asdict(trace)
    if any(map(math.isnan, trace.logprobs)):  # the engine's server gave none, or of another kind
        row["logprobs"] = None
    said = trace.messages[-1].get("content") if trace.messages else None
    return {
        "row_id": row.pop("id"),
        "response_ids": row.pop("token_ids"),
        "messages": row.pop("messages") or None,
        "forked_from": trace.forked_from and list(row.pop("forked_from")),
        "completion": said if isinstance(said, str) else None,
        "finish_reason": trace.finish_reasons[-1] if trace.finish_reasons else None,
        "weight_version": trace.weight_versions[-1] if trace.weight_versions else None,
        "num_turns": len(trace.finish_reasons),
        **row,
    }


def with_texts(row: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Add the text of each token, where there is a tokenizer and the row has none."""
    row = dict(row)
    pairs = (("prompt_token_ids", "prompt_texts"), ("response_ids", "response_texts"))
    for ids, texts in pairs if tokenizer is not None else ():
        if row.get(ids) is not None and row.get(texts) is None:
            row[texts] = token_texts(row[ids], tokenizer)
    return row


def token_texts(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Return each id's text, special tokens included. Tokens that are parts of one character have
    it at the last of them (of a tokenizer such as Llama 2's, at the token after them)."""
    known = _alone.setdefault(tokenizer, {})
    for token in set(ids) - known.keys():
        known[token] = decoded_text([token], tokenizer, skip_special_tokens=False)
    texts: list[str] = []
    for parts, run in itertools.groupby(ids, lambda token: UNFINISHED in known[token]):
        together = list(run)
        if parts:
            whole = decoded_text(together, tokenizer, skip_special_tokens=False)
            texts += [""] * (len(together) - 1) + [whole]
        else:
            texts += [known[token] for token in together]
    if "".join(texts) == decoded_text(ids, tokenizer, skip_special_tokens=False):
        return texts
    return _one_by_one(list(ids), tokenizer)


def _one_by_one(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """The same for a tokenizer whose tokens read differently alone, such as Llama 2's."""
    stream = TextStream(tokenizer, (), skip_special_tokens=False)
    texts: list[str] = []
    for end in range(1, len(ids) + 1):
        last = "length" if end == len(ids) else None
        chunk = stream.feed(RequestOutput(ids[:end], [], [], last, None, 0, end, 0, 0))
        if chunk is not None:
            texts += [""] * (len(chunk.token_ids) - 1) + [chunk.text]
    return texts
