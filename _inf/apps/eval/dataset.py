"""Reads rows in the form that verl trains on: parquet, JSON lines, a table, or a list.

In: `prompt`, `data_source`, `reward_model.ground_truth`, `extra_info` (verl's
`examples/data_preprocess`). Out: `Example`s. Knows nothing of engines and rewards.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError, shown

UNKNOWN_SOURCE = "unknown"  # as verl's validation calls rows without a data_source


@dataclasses.dataclass(frozen=True)
class Example:
    """One row. number: its place in the data, from 0. extra_info: may have `tools_kwargs` and
    `interaction_kwargs`, which the call gets, as in training."""

    number: int
    prompt: Any
    data_source: str
    ground_truth: Any
    extra_info: dict[str, Any]

    @property
    def params(self) -> dict[str, Any]:
        """The keywords of `generate` that the row brings."""
        names = ("tools_kwargs", "interaction_kwargs")
        return {name: self.extra_info[name] for name in names if self.extra_info.get(name)}


def read_examples(
    data: Any,
    *,
    prompt_key: str = "prompt",
    limit: int | None = None,
    shuffle_seed: int | None = None,
) -> list[Example]:
    """Read a path, a `datasets.Dataset`, a pandas table or a list of rows.

    shuffle_seed: shuffle before `limit` is applied. Raises `ConfigError` with row and key.
    """
    where = str(data) if isinstance(data, str | os.PathLike) else "data"
    rows = list(_rows(data, where))
    if not rows:
        raise ConfigError(f"{where}: it has no rows.")
    order = list(range(len(rows)))
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(order)
    return [_example(rows[number], number, prompt_key, where) for number in order[:limit]]


def _rows(data: Any, where: str) -> Iterable[Any]:
    if isinstance(data, str | os.PathLike):
        return _file(Path(data))
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        return list(data.to_dict("records"))
    if hasattr(data, "to_list"):  # datasets
        return list(data.to_list())
    if isinstance(data, Sequence):
        return data
    raise ConfigError(f"{where}: it must be a path, a table or a list of rows, not {shown(data)}.")


def _file(path: Path) -> Iterable[Any]:
    try:
        if path.suffix == ".parquet":
            import pandas

            return list(pandas.read_parquet(path).to_dict("records"))
        if path.suffix in (".jsonl", ".json"):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".json":
                return list(json.loads(text))
            return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError) as failure:
        raise ConfigError(f"{path} cannot be read: {failure}") from None
    raise ConfigError(f"{path}: the name of a file of rows ends in .parquet, .jsonl or .json.")


def _example(row: Any, number: int, prompt_key: str, where: str) -> Example:
    place = f"{where}, row {number}"
    if not isinstance(row, Mapping):
        raise ConfigError(f"{place}: it must be an object with named values, not {shown(row)}.")
    row = plain(row)
    if row.get(prompt_key) is None:
        raise ConfigError(
            f"{place}: the key {prompt_key!r} is missing; it has {', '.join(sorted(row))}. Name "
            "the key of the prompts with --prompt-key."
        )
    reward_model, extra = row.get("reward_model"), row.get("extra_info")
    for key, value in (("reward_model", reward_model), ("extra_info", extra)):
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{place}: {key} must be an object, not {shown(value)}.")
    source = row.get("data_source")
    if source is not None and not isinstance(source, str):
        raise ConfigError(f"{place}: data_source must be a name, not {shown(source)}.")
    return Example(
        number=number,
        prompt=row[prompt_key],
        data_source=source or UNKNOWN_SOURCE,
        ground_truth=(reward_model or {}).get("ground_truth"),
        extra_info=extra or {},
    )


def plain(value: Any) -> Any:
    """Turn the arrays and numbers of a parquet file into Python's own."""
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
