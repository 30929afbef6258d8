"""Turns a verl `DataProto` into rows of the JSON form and back, bit for bit.

A batch of `rollout_batch` can be kept, with more tensors and columns of a trainer beside its own. A
batch of another layout is refused, because its rows would not be those that come back.
"""

from __future__ import annotations

import collections
import contextlib
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from _inf.apps.rollouts.rollout import Rollout
from _inf.errors import ConfigError, error_text, shown
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
ARRAY = "__ndarray__"  # the key of an array's or a numpy number's values


def rows_of_data_proto(batch: Any) -> list[dict[str, Any]]:
    """Return the batch's rows. Raises `ConfigError` for a value that JSON cannot keep."""
    tensors = {} if batch.batch is None else dict(batch.batch.items())
    if missing := [name for name in TENSORS if name not in (*tensors, LOGPROBS)]:
        raise ConfigError(f"rows: the DataProto has no {missing[0]}; give one of rollout_batch.")
    rows = _token_fields(tensors)
    for name in (name for name in tensors if name not in TENSORS):
        dtype = str(tensors[name].dtype).removeprefix("torch.")
        for row, values in zip(rows, _kept(name, tensors[name].tolist()), strict=True):
            row.setdefault("tensors", {})[name] = {"dtype": dtype, "values": values}
    for name, values in batch.non_tensor_batch.items():
        _add_column(rows, name, values)
    scores = next((tensors[name] for name in SCORES if name in tensors), None)
    samples: collections.Counter[Any] = collections.Counter()
    for place, row in enumerate(rows):
        prompt = row.get("prompt_index", place)
        row["row_id"] = f"{prompt}.{samples[prompt]}"
        samples[prompt] += 1
        known = row.get("reward_scores", {}).get("reward")
        reward = known if scores is None else scores[place].sum().item()
        row["reward"] = float(reward) if isinstance(reward, int | float) else None
    return rows


def _kept(name: str, values: Iterable[Any]) -> list[Any]:
    """The rows' values of a tensor or a column, as JSON."""
    return [as_json(value, f"rows[{place}]: {name}") for place, value in enumerate(values)]


def _token_fields(tensors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ids, mask and log probs without padding, and what the padding was."""
    left, right = tensors["prompts"].shape[1], tensors["responses"].shape[1]
    seen = tensors["attention_mask"].bool()

    def unpadded(name: str, own: Any) -> list[Any]:
        return [row[kept].tolist() for row, kept in zip(tensors[name], own, strict=True)]

    columns = {"prompt_token_ids": unpadded("prompts", seen[:, :left])}
    columns["response_ids"] = unpadded("responses", seen[:, left:])
    columns["response_mask"] = unpadded("response_mask", seen[:, left:])
    if LOGPROBS in tensors:
        columns["logprobs"] = _kept(LOGPROBS, unpadded(LOGPROBS, seen[:, left:]))
    pads = tensors["input_ids"][~seen].tolist()[:1]
    widths = {"prompt_length": left, "response_length": right}
    same = widths | ({"pad_token_id": pads[0]} if pads else {})
    return [
        dict(zip(columns, values, strict=True)) | same
        for values in zip(*columns.values(), strict=True)
    ]


def _add_column(rows: Sequence[dict[str, Any]], name: str, values: Any) -> None:
    """Add a column's values to the rows: under a key of their own, or in `columns`."""
    kept = _kept(name, values)
    plain = values.dtype == object and values.ndim == 1
    key, kind = KEYS.get(name, ("", object))
    if plain and name == MESSAGES and all(map(_is_conversation, kept)):
        key, kept = MESSAGES, [value[MESSAGES] for value in kept]
    elif not plain or not all(isinstance(value, kind) and value is not None for value in kept):
        key = ""
    for row, value in zip(rows, kept, strict=True):
        if key:
            row[key] = value
        else:
            row.setdefault("columns", {})[name] = {"objects" if plain else "array": value}


def _is_conversation(value: Any) -> bool:
    match value:
        case {"messages": [*said]} if len(value) == 1:
            return all(isinstance(message, dict) for message in said)
    return False


def check_same(batch: Any, rollouts: Sequence[Rollout]) -> None:
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
        raise ConfigError.of("rollouts", "none; a batch has at least one row.")
    for each in rollouts:
        if not each.prompt_token_ids or each.response_ids is None:
            raise ConfigError(
                f"rollout {each.row_id}: it has no token ids of its prompt and its response (a "
                "server gave only text, or the row is an error); leave it out."
            )
    lacking = [each.row_id for each in rollouts if each.logprobs is None]
    if 0 < len(lacking) < len(rollouts):
        raise ConfigError(f"rollout {lacking[0]}: logprobs is missing, and other rows have it.")
    prompts = [each.prompt_token_ids or [] for each in rollouts]
    answers = [
        (
            each.response_ids or [],
            each.response_mask or [],
            [0.0] * len(each.response_ids or ()) if each.logprobs is None else each.logprobs,
        )
        for each in rollouts
    ]
    widths = (
        max(*map(len, prompts), *(each.prompt_length or 0 for each in rollouts)),
        max(*(len(ids) for ids, *_ in answers), *(each.response_length or 0 for each in rollouts)),
    )
    sizes = {(len(ids), len(answer[0])) for ids, answer in zip(prompts, answers, strict=True)}
    pad = _pad(rollouts, padded=sizes != {widths})
    batch = data_proto(prompts, answers, pad, widths, _columns(rollouts, prompts))
    if lacking:
        batch.pop([LOGPROBS])
    for name in _names(rollouts, "tensors"):
        kept = [(each.tensors or {})[name] for each in rollouts]
        with _as_written(f"tensors.{name}"):
            dtype = getattr(torch, kept[0]["dtype"])
            batch.batch[name] = torch.tensor([each["values"] for each in kept], dtype=dtype)
    return batch


def _pad(rollouts: Sequence[Rollout], *, padded: bool) -> int:
    """The id of the padding; if there is none to write, any."""
    pads = {each.pad_token_id for each in rollouts} - {None}
    if len(pads) > 1 or (padded and not pads):
        found = f"they have {sorted(map(str, pads))}" if pads else "none has one"
        raise ConfigError(
            f"rollouts: {found}; a batch needs one pad_token_id: make them with tokenizer=, or set "
            "it with dataclasses.replace."
        )
    return next(iter(pads), 0) or 0


def _names(rollouts: Sequence[Rollout], field: str) -> list[str]:
    """The names of the rows' `tensors` or `columns`, which must be the same in all."""
    names = list(getattr(rollouts[0], field) or {})
    for each in rollouts:
        if differing := set(names) ^ set(getattr(each, field) or {}):
            name = sorted(differing)[0]
            raise ConfigError(f"rollout {each.row_id}: {field}: not all rows have {name!r}.")
    return names


def _columns(rollouts: Sequence[Rollout], prompts: Sequence[list[int]]) -> dict[str, Any]:
    """Build the columns; one of which no row knows anything is left out."""
    import numpy as np

    with _as_written("uid, messages or reward_scores"):
        columns = {
            name: [from_json(getattr(each, key)) for each in rollouts]
            for name, (key, _) in KEYS.items()
        }
        said = [from_json(each.messages) for each in rollouts]
    columns[MESSAGES] = [None if each is None else {MESSAGES: each} for each in said]
    order: dict[tuple[int, ...], int] = {}
    places = [order.setdefault(tuple(ids), len(order)) for ids in prompts]
    ids = [str(uuid.uuid4()) for _ in order]
    for place, (rollout, number) in enumerate(zip(rollouts, places, strict=True)):
        if rollout.uid is None:
            columns["uid"][place] = ids[number]
        if rollout.prompt_index is None:
            columns["prompt_index"][place] = number
        in_tensors = any(name in (rollout.tensors or {}) for name in SCORES)
        if rollout.reward_scores is None and rollout.reward is not None and not in_tensors:
            columns["reward_scores"][place] = {"reward": rollout.reward}
    if any(each is not None for each in columns["reward_scores"]):
        columns["reward_scores"] = [each or {} for each in columns["reward_scores"]]
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


# ── Values of Python and numpy as JSON that is read back the same ────────────────────────────────


def as_json(value: Any, where: str) -> Any:
    """Return the JSON value. Raises `ConfigError` for what JSON cannot keep; `where` begins it."""
    import numpy as np

    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        values = [as_json(each, where) for each in array.ravel().tolist()]
        return {ARRAY: values, "dtype": str(array.dtype), "shape": list(array.shape)}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is list:
        return [as_json(each, where) for each in value]
    if type(value) is dict and ARRAY not in value and all(type(key) is str for key in value):
        return {key: as_json(each, where) for key, each in value.items()}
    raise ConfigError(
        f"{where}: {shown(value)} cannot be kept as JSON and read back the same; use numbers that "
        "are finite, texts, lists, dicts with text keys, or numpy arrays of them."
    )


def from_json(value: Any) -> Any:
    """Return the value that `as_json` was given."""
    import numpy as np

    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        array = np.empty(len(value[ARRAY]), dtype=np.dtype(value["dtype"]))
        for place, each in enumerate(value[ARRAY]):
            array[place] = from_json(each)
        return array.reshape(value["shape"])[()]
    return {key: from_json(each) for key, each in value.items()}
