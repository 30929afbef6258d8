"""Reads records: rows with ids and two log probs of each token, as trainers write them."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from _inf.apps.check.differences import Floats
from _inf.apps.json_lines import json_lines
from _inf.apps.rollouts.sources import rows_of_batch
from _inf.apps.runs.files import numbered
from _inf.errors import ConfigError, error_text, shown

# The names that trainers write, of verl 0.6.1 to 0.9 (`rollout_log_probs`, `old_log_probs`), this
# library (`logprobs`), slime 0.2 to 0.3.1 (`rollout_log_probs`, `log_probs`), NeMo-RL (`grpo.py` at
# 7ea279ab, train_data_step*.jsonl: `generation_logprobs`, `prev_logprobs`) and prime-rl
# (`trainer/rl/token_export.py` at 559b4477: `inference_logprobs`, `trainer_logprobs`).
ROLLOUTS = ("rollout_log_probs", "logprobs", "generation_logprobs", "inference_logprobs")
TRAINERS = ("old_log_probs", "log_probs", "prev_logprobs", "trainer_logprobs")
PROMPT = ("prompt_token_ids", "prompt_ids")
ANSWER = ("response_ids", "completion_ids")
WHOLE = ("input_ids", "token_ids", "tokens")  # of prompt and answer
MASK = ("response_mask", "completion_mask", "loss_mask", "loss_masks", "token_loss_mask")
STEP = ("step", "global_step", "rollout_id", "weight_version")
VERLS = ("input_ids", "attention_mask", "responses")

Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Record:
    """One answer. where: its file and line. ids: one for each value of `a` and `b`, and `sampled`
    says which of them the model sampled; None if the record has no ids, as for `prompt`."""

    where: str
    step: int | None
    prompt: list[int] | None
    ids: list[int] | None
    sampled: Bools
    a: Floats
    b: Floats


@dataclasses.dataclass
class Records:
    """The records of a file or a folder. names: the two sides' keys. left_out: files of a folder
    without these lists."""

    path: Path
    names: tuple[str, str]
    rows: list[Record] = dataclasses.field(default_factory=list)
    without_mask: int = 0
    left_out: list[str] = dataclasses.field(default_factory=list)


def read_records(path: Path, sides: tuple[str, str] | None) -> Records:
    """Read the rows of a file, or of all files of a folder.

    sides: the keys of the two log probs; None finds the known ones.
    Raises `ConfigError` with the file, the row and the key that is wrong.
    """
    if sides is not None and sides[0] == sides[1]:
        raise ConfigError.of("sides", f"both are {sides[0]!r}; name two lists.")
    records: Records | None = None
    files, left_out = _files(path), []
    for file in files:
        rows = [*_rows(file)]
        names = records.names if records else sides
        if len(files) > 1 and not any(_has_sides(row, names) for _, row in rows):
            left_out.append(file.name)
            continue
        for where, row in rows:
            records = records or Records(path, sides or _sides(row, where), left_out=left_out)
            _add(records, row, where, file)
    if records is None or not any(row.sampled.any() for row in records.rows):
        raise ConfigError(f"{path}: it has no token that the model sampled.")
    return records


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    for pattern in ("*", "step_*/*"):  # the second one is prime-rl's
        if files := [file for file in path.glob(pattern) if file.suffix in READERS]:
            return sorted(files, key=lambda file: numbered(file.relative_to(path)))
    raise ConfigError(f"{path}: it has no file of records ({', '.join(READERS)}).")


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    if (reader := READERS.get(file.suffix)) is None:
        known = ", ".join(READERS)
        raise ConfigError(f"{file}: records are read from {known}, not from {file.suffix!r}.")
    if not file.is_file():
        raise ConfigError(f"{file}: no such file.")
    for number, row in reader(file):
        where = f"{file}, row {number}"
        if not isinstance(row, Mapping):
            raise ConfigError(f"{where}: a record is an object, not {shown(row)}.")
        yield where, row


def _of_safetensors(file: Path) -> list[tuple[int, Mapping[str, object]]]:
    from safetensors.torch import load_file

    try:
        columns = load_file(file)
    except Exception as failure:  # SafetensorError is a plain Exception
        raise ConfigError(f"{file}: it is damaged ({error_text(failure)}).") from failure
    if all(name in columns for name in VERLS):
        width = columns["responses"].shape[-1]
        # As verl's `compute_response_mask` makes it.
        columns.setdefault("response_mask", columns["attention_mask"][:, -width:])
        batch = SimpleNamespace(batch=columns, non_tensor_batch={})
        more = [name for name in TRAINERS if name in columns]
        return list(enumerate(rows_of_batch(batch, str(file), more), 1))
    return _of_columns(columns)


def _of_torch(file: Path) -> list[tuple[int, Mapping[str, object]]]:
    """Read slime's `--save-debug-train-data`: `samples` (0.3.1, `observability/train_data_utils.py`
    at 624b824a), before that `rollout_data` (`utils/train_dump_utils.py`), which has columns with a
    tensor for each row. `rollouts.trainers.whole_files` reads such files without their tensors."""
    import torch

    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as failure:  # UnpicklingError, RuntimeError, EOFError
        reason = error_text(failure).partition("\n")[0]
        raise ConfigError(
            f"{file}: torch cannot load it as tensors and plain values ({reason}); another pickle "
            "may run any code, so it is not opened."
        ) from failure
    saved = saved if isinstance(saved, dict) else {}
    rows: list[tuple[int, Mapping[str, object]]]
    samples = saved.get("samples")
    if isinstance(samples, list) and all(isinstance(sample, dict) for sample in samples):
        rows = [
            (number, {name: _plain(value) for name, value in sample.items()})
            for number, sample in enumerate(samples, 1)
        ]
    elif isinstance(columns := saved.get("rollout_data"), dict):
        rows = _of_columns(columns)
    else:
        raise ConfigError(f"{file}: it has no samples or rollout_data, as slime's train data has.")
    return [(number, {"rollout_id": saved.get("rollout_id"), **row}) for number, row in rows]


def _of_json_lines(file: Path) -> list[tuple[int, Any]]:
    """Read JSON lines. In NeMo-RL's each value is a list of one (`log_batched_dict_as_jsonl`)."""
    rows = json_lines(file)
    for _, row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
                row[name] = value[0]
    return rows


def _of_columns(columns: Mapping[str, object]) -> list[tuple[int, Mapping[str, object]]]:
    """Return rows of columns that have one value for each row."""
    lists = {name: _plain(column) for name, column in columns.items()}
    lists = {name: column for name, column in lists.items() if isinstance(column, list)}
    [(count, _)] = Counter(map(len, lists.values())).most_common(1) or [(0, 0)]
    full = {name: column for name, column in lists.items() if len(column) == count}
    return [
        (place + 1, {name: column[place] for name, column in full.items()})
        for place in range(count)
    ]


def _plain(value: Any) -> Any:
    """Return lists in place of tensors."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


READERS: dict[str, Callable[[Path], Iterable[tuple[int, Any]]]] = {
    ".jsonl": _of_json_lines,
    ".safetensors": _of_safetensors,
    ".pt": _of_torch,
}


def _sides(row: Mapping[str, object], where: str) -> tuple[str, str]:
    found = [[name for name in names if _is_list(row.get(name))] for names in (ROLLOUTS, TRAINERS)]
    if all(len(names) == 1 for names in found):
        return found[0][0], found[1][0]
    lists = [name for name, value in row.items() if _is_list(value)]
    raise ConfigError(
        f"{where}: which two lists are the log probs? Name them with --sides A,B: the rollout's, "
        f"then the trainer's. Known names: {', '.join(ROLLOUTS)}; {', '.join(TRAINERS)}. Its lists "
        f"of numbers: {shown(lists)}."
    )


def _has_sides(row: Mapping[str, object], names: tuple[str, str] | None) -> bool:
    if names is not None:
        return all(_is_list(row.get(name)) for name in names)
    return all(any(name in row for name in known) for known in (ROLLOUTS, TRAINERS))


def _is_list(value: object) -> TypeGuard[Sequence[float | None]]:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(item is None or isinstance(item, int | float) for item in value)
    )


def _add(records: Records, row: Mapping[str, object], where: str, file: Path) -> None:
    prompt, answer, mask = (_ids(row, names, where) for names in (PROMPT, ANSWER, MASK))
    whole = None if answer is not None else _ids(row, WHOLE, where)
    lists = [_numbers(row, name, where) for name in records.names]
    if whole is not None:  # the mask says where its answer begins, or covers all of it
        size = min(len(whole), *map(len, lists)) if mask is None else len(mask)
        prompt, answer = whole[: len(whole) - size], whole[len(whole) - size :]
    size = next((len(each) for each in (answer, mask) if each is not None), min(map(len, lists)))
    if mask is None:
        records.without_mask += 1
    elif len(mask) != size:
        raise ConfigError(f"{where}: the mask has {len(mask)} values, and the answer {size} ids.")
    values = [
        _of_answer(each, len(prompt or ()), size, f"{where}: {name}")
        for each, name in zip(lists, records.names, strict=True)
    ]
    sampled = np.array(mask, bool) if mask is not None else _after_zeros(*values)
    records.rows.append(Record(where, _step(row, file), prompt, answer, sampled, *values))


def _after_zeros(a: Floats, b: Floats) -> Bools:
    """Without a mask all tokens count, but for a prompt's, for which a side has zeros."""
    both = (a != 0) & (b != 0)
    first = int(both.argmax()) if both.any() else len(both)
    sampled: Bools = np.arange(len(both)) >= first
    return sampled


def _of_answer(values: Floats, prompt: int, answer: int, where: str) -> Floats:
    """Return the answer's values, of a list that also covers the prompt, maybe without its first
    token, or has zeros after its end. prompt, answer: numbers of ids."""
    ends = (prompt + answer - 1, prompt + answer, answer)
    for size in (len(values), *sorted(ends)):
        if size in ends and answer <= size <= len(values) and not values[size:].any():
            return values[size - answer : size]
    raise ConfigError(
        f"{where} has {len(values)} values; its answer has {answer} ids, and its prompt {prompt}."
    )


def _numbers(row: Mapping[str, object], name: str, where: str) -> Floats:
    value = row.get(name)
    if not _is_list(value):
        raise ConfigError(f"{where}: {name}: expected a list of numbers, got {shown(value)}.")
    try:
        return np.array([np.nan if item is None else item for item in value], np.float64)
    except OverflowError as failure:  # of an int
        raise ConfigError(f"{where}: {name}: {failure}.") from None


def _ids(row: Mapping[str, object], names: Sequence[str], where: str) -> list[int] | None:
    for name in names:
        if (value := row.get(name)) is None:
            continue
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and item % 1 == 0 for item in value
        ):
            raise ConfigError(f"{where}: {name}: expected a list of whole numbers.")
        return [int(item) for item in value]
    return None


def _step(row: Mapping[str, object], file: Path) -> int | None:
    for name in STEP:
        if isinstance(step := row.get(name), int | float) and step % 1 == 0:
            return int(step)
    in_name = re.findall(r"\d+", file.stem)
    return int(in_name[-1]) if in_name else None
