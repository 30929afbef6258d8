"""Turns a verl `DataProto` into rows of the JSON form and back, bit for bit.

A batch of `rollout_batch` can be kept, with more tensors and columns of a trainer beside its own. A
batch of another layout is refused, because its rows would not be those that come back.
"""

from __future__ import annotations

import collections
import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from _inf.apps.rollouts.exact_json import as_json, from_json
from _inf.apps.rollouts.rollout import Rollout
from _inf.errors import ConfigError, error_text
from _inf.response.trainer_batch import TENSORS, column, data_proto

LOGPROBS = "rollout_log_probs"
SCORES = ("token_level_scores", "rm_scores")  # verl's names for a reward at each token
# A column's key in a row, and the type that its values must have to be there.
KEYS: Mapping[str, tuple[str, type]] = {
    "uid": ("uid", object),
    "completions": ("completion", str),
    "prompt_index": ("prompt_index", int),
    "finish_reason": ("finish_reason", str),
    "weight_version": ("weight_version", int),
    "reward_scores": ("reward_scores", dict),
    "__num_turns__": ("num_turns", int),
}
MESSAGES = "messages"


def rows_of_data_proto(batch: Any) -> list[dict[str, Any]]:
    """Return the batch's rows. Raises `ConfigError` for one that would not come back the same."""
    tensors = batch.batch
    names = list(tensors.keys()) if tensors is not None else []
    if missing := [name for name in TENSORS if name not in (*names, LOGPROBS)]:
        raise ConfigError(f"rows: the DataProto has no {missing[0]}; give one of rollout_batch.")
    rows = _token_fields(tensors, LOGPROBS in names)
    for name in names:
        if name not in TENSORS:
            dtype = str(tensors[name].dtype).removeprefix("torch.")
            for place, (row, values) in enumerate(zip(rows, tensors[name].tolist(), strict=True)):
                where = f"rows[{place}]: {name}"
                kept = {"dtype": dtype, "values": as_json(values, where)}
                row.setdefault("tensors", {})[name] = kept
    for name, values in batch.non_tensor_batch.items():
        for row, kept in zip(rows, _column_fields(name, values), strict=True):
            row["columns"] = row.get("columns", {}) | kept.pop("columns", {})
            row |= kept
    samples: collections.Counter[Any] = collections.Counter()
    for place, row in enumerate(rows):
        prompt = row.get("prompt_index", place)
        row["row_id"] = f"{prompt}.{samples[prompt]}"
        samples[prompt] += 1
        row["reward"] = _reward(row, tensors, names, place)
        row["columns"] = row.get("columns") or None
    _check_same(batch, [Rollout.of(row, f"rows[{place}]") for place, row in enumerate(rows)])
    return rows


def _token_fields(tensors: Any, has_logprobs: bool) -> list[dict[str, Any]]:
    """Return ids, mask and log probs without padding, and what the padding was."""
    left, right = tensors["prompts"].shape[1], tensors["responses"].shape[1]
    seen = tensors["attention_mask"].bool()
    pads = tensors["input_ids"][~seen].tolist()[:1]
    asked, answered = seen[:, :left].sum(1).tolist(), seen[:, left:].sum(1).tolist()
    lists = {name: tensors[name].tolist() for name in ("prompts", "responses", "response_mask")}
    logprobs = tensors[LOGPROBS].tolist() if has_logprobs else None
    rows = []
    for place, (before, after) in enumerate(zip(asked, answered, strict=True)):
        row = {
            "prompt_token_ids": lists["prompts"][place][left - before :],
            "response_ids": lists["responses"][place][:after],
            "response_mask": lists["response_mask"][place][:after],
            "prompt_length": left,
            "response_length": right,
        }
        if logprobs is not None:
            row["logprobs"] = as_json(logprobs[place][:after], f"rows[{place}]: {LOGPROBS}")
        rows.append(row | ({"pad_token_id": pads[0]} if pads else {}))
    return rows


def _column_fields(name: str, values: Any) -> list[dict[str, Any]]:
    """Return what each row has of a column: a key of its own, or a place in `columns`."""
    kept = [as_json(value, f"rows[{place}]: {name}") for place, value in enumerate(values)]
    plain = values.dtype == object and values.ndim == 1
    if plain and name == MESSAGES and all(_is_conversation(value) for value in kept):
        return [{MESSAGES: value[MESSAGES]} for value in kept]
    key, kind = KEYS.get(name, ("", object))
    if plain and key and all(isinstance(value, kind) and value is not None for value in kept):
        return [{key: value} for value in kept]
    entry = "objects" if plain else "array"
    return [{"columns": {name: {entry: value}}} for value in kept]


def _is_conversation(value: Any) -> bool:
    match value:
        case {"messages": [*said]} if len(value) == 1:
            return all(isinstance(message, dict) for message in said)
    return False


def _reward(row: Mapping[str, Any], tensors: Any, names: Sequence[str], place: int) -> float | None:
    """The sum of the tokens' scores, or the reward that a trainer's batch of traces has."""
    if name := next((name for name in SCORES if name in names), None):
        return float(tensors[name][place].sum())
    reward = (row.get("reward_scores") or {}).get("reward")
    return float(reward) if isinstance(reward, int | float) else None


def _check_same(batch: Any, rollouts: Sequence[Rollout]) -> None:
    """Refuse a batch of which a tensor would come back changed."""
    import torch

    again = rollouts_to_data_proto(rollouts).batch
    for name, tensor in batch.batch.items():
        if tensor.dtype != again[name].dtype:
            raise ConfigError(f"rows: {name} has the type {tensor.dtype}, not {again[name].dtype}.")
        for place, (old, new) in enumerate(zip(tensor, again[name], strict=True)):
            if not torch.equal(old.cpu(), new):
                raise ConfigError(
                    f"rows[{place}]: {name} is not laid out as by rollout_batch: prompts padded "
                    "left, responses right, with one pad id, and 0 in the mask and the log probs."
                )


# ── Back to a DataProto ──────────────────────────────────────────────────────────────────────────


def rollouts_to_data_proto(rollouts: Sequence[Rollout]) -> Any:
    """Return a `DataProto` with `rollout_batch`'s tensors and columns.

    Rows of a `DataProto` give the same one again; others are as wide as the longest of them, and
    those with equal prompts have one `uid`. A known reward is in `reward_scores`.
    Raises `ConfigError` with the row that has no ids, or that does not fit the others.
    """
    import torch

    rollouts = list(rollouts)
    if not rollouts:
        raise ConfigError("rollouts: none; a batch has at least one row.")
    prompts, answers = zip(*(_tokens(each) for each in rollouts), strict=True)
    logprobs = _all_or_none([each.logprobs for each in rollouts], rollouts, "logprobs")
    widths = (
        max(max(len(each.prompt_token_ids or ()), each.prompt_length or 0) for each in rollouts),
        max(max(len(each.response_ids or ()), each.response_length or 0) for each in rollouts),
    )
    spread = [
        (ids, mask, given if given is not None else [0.0] * len(ids))
        for (ids, mask), given in zip(answers, logprobs, strict=True)
    ]
    batch = data_proto(prompts, spread, _pad(rollouts, widths), widths, _columns(rollouts))
    if logprobs[0] is None:
        batch.pop([LOGPROBS])
    for name in _names(rollouts, "tensors"):
        kept = [(each.tensors or {})[name] for each in rollouts]
        with _as_written(f"tensors.{name}"):
            dtype = getattr(torch, kept[0]["dtype"])
            batch.batch[name] = torch.tensor([each["values"] for each in kept], dtype=dtype)
    return batch


def _tokens(rollout: Rollout) -> tuple[list[int], tuple[list[int], list[int]]]:
    if not rollout.prompt_token_ids or rollout.response_ids is None:
        raise ConfigError(
            f"rollout {rollout.row_id}: it has no token ids of its prompt and its response (a "
            "server gave only text, or the row is an error); leave it out."
        )
    return rollout.prompt_token_ids, (rollout.response_ids, rollout.response_mask or [])


def _pad(rollouts: Sequence[Rollout], widths: tuple[int, int]) -> int:
    pads = {each.pad_token_id for each in rollouts} - {None}
    padded = any(
        (len(each.prompt_token_ids or ()), len(each.response_ids or ())) != widths
        for each in rollouts
    )
    if len(pads) > 1 or (padded and not pads):
        found = f"they have {sorted(map(str, pads))}" if pads else "none has one"
        raise ConfigError(
            f"rollouts: {found}; a batch needs one pad_token_id: make them with tokenizer=, or set "
            "it with dataclasses.replace."
        )
    return next(iter(pads), 0) or 0


def _all_or_none(values: list[Any], rollouts: Sequence[Rollout], name: str) -> list[Any]:
    lacking = [row.row_id for row, value in zip(rollouts, values, strict=True) if value is None]
    if lacking and len(lacking) < len(rollouts):
        raise ConfigError(f"rollout {lacking[0]}: {name} is missing, and other rows have it.")
    return values


def _names(rollouts: Sequence[Rollout], field: str) -> list[str]:
    """The names of the rows' `tensors` or `columns`, which must be the same in all."""
    names = list(getattr(rollouts[0], field) or {})
    for each in rollouts:
        if differing := set(names) ^ set(getattr(each, field) or {}):
            name = sorted(differing)[0]
            raise ConfigError(f"rollout {each.row_id}: {field}: not all rows have {name!r}.")
    return names


def _columns(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Build the columns; one of which no row knows anything is left out."""
    import numpy as np

    order: dict[tuple[int, ...], int] = {}
    places = [order.setdefault(tuple(each.prompt_token_ids or ()), len(order)) for each in rollouts]
    new = [str(uuid.uuid4()) for _ in order]
    with _as_written("uid, messages or reward_scores"):
        columns: dict[str, list[Any]] = {
            name: [from_json(getattr(each, key)) for each in rollouts]
            for name, (key, _) in KEYS.items()
        }
        columns["reward_scores"] = _scores(rollouts)
        columns[MESSAGES] = [
            None if each.messages is None else {MESSAGES: from_json(each.messages)}
            for each in rollouts
        ]
    for name, values in (("uid", [new[place] for place in places]), ("prompt_index", places)):
        given = columns[name]
        columns[name] = [
            value if known is None else known for known, value in zip(given, values, strict=True)
        ]
    built = {
        name: column(values)
        for name, values in columns.items()
        if any(value is not None for value in values)
    }
    for name in _names(rollouts, "columns"):
        with _as_written(f"columns.{name}"):
            kept = [(each.columns or {})[name] for each in rollouts]
            whole = "array" in kept[0]
            values = [from_json(each["array" if whole else "objects"]) for each in kept]
            built[name] = np.stack(values) if whole else column(values)
    return built


def _scores(rollouts: Sequence[Rollout]) -> list[Any]:
    """The rows' own scores; of a row without them its reward, unless a tensor has it."""
    scores = [from_json(each.reward_scores) for each in rollouts]
    for place, each in enumerate(rollouts):
        in_tensors = any(name in (each.tensors or {}) for name in SCORES)
        if scores[place] is None and each.reward is not None and not in_tensors:
            scores[place] = {"reward": each.reward}
    return scores if all(each is None for each in scores) else [each or {} for each in scores]


@contextlib.contextmanager
def _as_written(keys: str) -> Iterator[None]:
    """Turn what goes wrong with a value of another form into a `ConfigError`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as failure:
        raise ConfigError(
            f"rollouts: {keys}: {error_text(failure)}; it is not as save_rollouts writes it: write "
            "the file again."
        ) from None
