"""Traces of a served engine's sessions: their file, and as rollouts in a trainer's batch.

The file has a line for each answer, written when it is recorded, so that a killed server loses
none: a trace's first line is the whole trace, and each later one its id and what has changed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from _inf.apps.json_lines import first_row, json_lines, json_text
from _inf.apps.rollouts.rollout import Rollout, first_fault, rollouts_to_data_proto
from _inf.errors import ConfigError, InferenceError, shown
from _inf.response.decode import decoded_text
from _inf.response.trainer_batch import OTHER_LOGPROBS
from _inf.runtime.files import check_output, opened
from _inf.types import Message, Tokenizer, python_value


@dataclasses.dataclass(frozen=True)
class Trace:
    """One trajectory of a session of `engine.serve()`: the ids that the model read and sampled.

    token_ids: everything after the prompt. response_mask, logprobs: 1 and a log prob for a sampled
    id (NaN if the engine's own server gives none), 0 and 0.0 for an id of the template. messages:
    the conversation with its answers; empty if the prompt was token ids. finish_reasons: one per
    answer. weight_versions: each with the index of its first token in `token_ids`, as in
    `RequestOutput`. reward: None until it is set. forked_from: the trace whose first messages it
    shares, and how many; None if it shares none. fork_reason: why it does not continue that trace
    (docs/serving.md). task: what the session was opened for. rollout: shared by all traces of one
    rollout: the name that its sessions were opened with, else a text unique to the session, even
    among sessions of one name; None if no session made the trace. limit: `max_turns` or
    `max_tokens` if that ended the session.
    """

    id: str
    prompt_token_ids: list[int]
    token_ids: list[int] = dataclasses.field(default_factory=list)
    response_mask: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    messages: list[Message] = dataclasses.field(default_factory=list)
    finish_reasons: list[str] = dataclasses.field(default_factory=list)
    weight_versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    reward: float | None = None
    forked_from: tuple[str, int] | None = None
    fork_reason: str | None = None
    task: str | None = None
    rollout: str | None = None
    limit: str | None = None


class TraceFile:
    """A file to which traces are appended; no other process may write it.

    A last line that a killed server has cut is removed. Raises `ConfigError` as `check_trace_file`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        check_trace_file(path)
        self._file, _ = opened(path, "server", "traces", mode=0o600)
        self._size = os.fstat(self._file).st_size
        if self._size:
            with mmap.mmap(self._file, 0, prot=mmap.PROT_READ) as whole:
                self._size = whole.rfind(b"\n") + 1
            os.ftruncate(self._file, self._size)

    def write(self, before: Trace | None, after: Trace) -> None:
        """Write a new trace, or what has changed in one. Raises `InferenceError` if it cannot."""
        changes = vars(after) if before is None else {"id": after.id, **_changes(before, after)}
        line = f"{json_text(changes)}\n".encode()
        try:
            written = os.write(self._file, line)
        except OSError as failure:
            raise InferenceError(f"traces: {self.path}: {failure.strerror}.") from None
        if written < len(line):
            os.ftruncate(self._file, self._size)
            raise InferenceError(f"traces: {self.path}: there is no space left for it.")
        self._size += written

    def close(self) -> None:
        os.close(self._file)


def _changes(before: Trace, after: Trace) -> dict[str, Any]:
    """The fields that differ; of a list that has grown, its new items."""
    changes = {}
    for (name, value), old in zip(vars(after).items(), vars(before).values(), strict=True):
        if isinstance(value, list):
            if len(value) > len(old):
                changes[name] = value[len(old) :]
        elif value != old:
            changes[name] = value
    return changes


def load_traces(path: str | os.PathLike[str]) -> list[Trace]:
    """Read the file of `engine.serve(traces=...)`: the traces in the order in which they began.

    If a killed server left a half-written last line, it is skipped. Raises `ConfigError` with the
    line that is not a trace.
    """
    traces: dict[str, dict[str, object]] = {}
    for number, row in json_lines(path, cut=True):
        where = f"{path}, line {number}"
        if not isinstance(row, dict) or not isinstance(row.get("id"), str):
            raise ConfigError(f"{where}: {shown(row)} is not a trace of inf serve --traces.")
        trace = traces.setdefault(row["id"], {})
        new = not trace
        for name, value in row.items():
            added = isinstance(value, list) and not new and isinstance(trace.get(name), list)
            trace[name] = trace[name] + value if added else value
        if new:
            _trace(trace, where)
    return [_trace(trace, str(path)) for trace in traces.values()]


def check_trace_file(path: str | os.PathLike[str]) -> None:
    """Raise `ConfigError` for a file to which no traces can be appended, and for one whose first
    line is no whole trace."""
    file = check_output(path, "traces", appended=True)
    if file.exists() and file.stat().st_size:
        with file.open("rb") as earlier:
            whole = earlier.readline().endswith(b"\n")
        if not (whole and is_trace_file(file)):
            reason = "its first line is not a trace of inf serve --traces; name another file."
            raise ConfigError.of("traces", f"{path}: {reason}")


def is_trace_file(path: str | os.PathLike[str]) -> bool:
    """Whether the first line of a file of JSON lines is a trace."""
    return {"id", "prompt_token_ids", "token_ids"} <= first_row(path).keys()


@functools.cache
def _adapter() -> pydantic.TypeAdapter[Trace]:
    return pydantic.TypeAdapter(Trace)


def _trace(row: Mapping[str, object], where: str) -> Trace:
    logprobs = row.get("logprobs")
    if isinstance(logprobs, list):  # JSON has no NaN
        row = {**row, "logprobs": [math.nan if one is None else one for one in logprobs]}
    try:
        return _adapter().validate_python(row)
    except pydantic.ValidationError as failure:
        reason = f"{first_fault(failure)}; it is not a trace of inf serve --traces."
        raise ConfigError(f"{where}: {reason}") from None


def traces_to_data_proto(
    traces: Sequence[Trace],
    rewards: Sequence[float] | None,
    uid: Sequence[object] | None,
    tokenizer: Tokenizer,
    widths: tuple[int, int],
) -> Any:
    """Return the `DataProto` of a served engine's traces, `widths` wide.

    rewards: one per trace; None takes each trace's `reward`, or its rollout's. uid: one per trace;
    None takes the task's, or without one gives rollouts with equal first prompts the same.
    """
    if not traces:
        raise ConfigError.of("traces", "none; a batch has at least one row.")
    for name, values in (("rewards", rewards), ("uid", uid)):
        if values is not None and len(values) != len(traces):
            raise ConfigError.of(name, f"{len(values)} for {len(traces)} traces; give one each.")
    scores = (
        _of_rollouts(traces, "reward", lambda trace: trace.reward)
        if rewards is None
        else python_value(rewards)
    )
    uid = _of_rollouts(traces, "task", lambda trace: trace.task) if uid is None else uid
    rows = zip(traces, scores, uid, strict=True)
    return rollouts_to_data_proto(
        [
            _wide(trace, f"traces[{index}]", tokenizer, widths, {"reward": reward, "uid": group})
            for index, (trace, reward, group) in enumerate(rows)
        ]
    )


def _wide(
    trace: Trace,
    where: str,
    tokenizer: Tokenizer,
    widths: tuple[int, int],
    of_batch: Mapping[str, object],
) -> Rollout:
    """A trace as a row of a batch with these widths. Raises `ConfigError` if it does not fit, and
    for a reward that is no finite number: one would spoil the advantages of its whole group."""
    keys = ("rollout.prompt_length", "rollout.response_length")
    for ids, most, key in zip((trace.prompt_token_ids, trace.token_ids), widths, keys, strict=True):
        if len(ids) > most:
            raise ConfigError.of(
                where,
                f"its {len(ids)} tokens are above {most}, the width of a batch; raise {key}.",
            )
    if any(map(math.isnan, trace.logprobs)):
        raise ConfigError.of(where, OTHER_LOGPROBS)
    shape = {"prompt_length": widths[0], "response_length": widths[1]}
    row = {
        **row_of_trace(trace),
        **shape,
        **of_batch,
        "completion": _last_answer(trace, tokenizer),
        "messages": trace.messages,
        "reward_scores": {},
        "pad_token_id": tokenizer.pad_token_id,
    }
    return Rollout.of(row, where)


def _of_rollouts(traces: Sequence[Trace], name: str, of: Callable[[Trace], Any]) -> list[Any]:
    """Each trace's reward or task; a trace without one gets that of its rollout's other traces."""
    known: dict[str | None, set[Any]] = {}
    for trace in traces:
        if (value := of(trace)) is not None and trace.rollout is not None:
            known.setdefault(trace.rollout, set()).add(value)
    values = []
    for index, trace in enumerate(traces):
        value, others = of(trace), known.get(trace.rollout, set())
        if value is None and len(others) > 1:
            raise ConfigError.of(
                f"traces[{index}]",
                f"it has no {name}, and other traces of its rollout {shown(trace.rollout)} have "
                f"{sorted(others)}; set it, or give one for each trace.",
            )
        values.append(next(iter(others), None) if value is None else value)
    return values


def _last_answer(trace: Trace, tokenizer: Tokenizer) -> str:
    """Return the last answer's text, decoded from ids if the trace has no messages."""
    if trace.messages:
        return str(trace.messages[-1]["content"])
    begin = max((place for place, bit in enumerate(trace.response_mask) if not bit), default=-1) + 1
    return decoded_text(trace.token_ids[begin:], tokenizer, skip_special_tokens=True)


def row_of_trace(trace: Trace) -> dict[str, object]:
    """A trace in the form of a rollout's row."""
    row = dataclasses.asdict(trace)
    if any(map(math.isnan, trace.logprobs)):  # the engine's server gave none, or of another kind
        row["logprobs"] = None
    last = trace.messages[-1].get("content") if trace.messages else None
    return {
        "row_id": row.pop("id"),
        "response_ids": row.pop("token_ids"),
        "messages": row.pop("messages") or None,
        "forked_from": trace.forked_from and list(row.pop("forked_from")),
        "completion": last if isinstance(last, str) else None,
        "finish_reason": trace.finish_reasons[-1] if trace.finish_reasons else None,
        "weight_version": trace.weight_versions[-1][0] if trace.weight_versions else None,
        "num_turns": len(trace.finish_reasons),
        "uid": trace.task,
        **row,
        "weight_versions": [list(pair) for pair in trace.weight_versions],
    }
