"""Reads rows in the form that verl trains on (its `examples/data_preprocess`): parquet, JSON lines,
the Hub, a table, or a list."""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _inf.apps.eval.reward_process import RewardFunction
from _inf.apps.json_lines import json_lines
from _inf.errors import ConfigError, InferenceError, shown
from _inf.models.hub import HUB_TIMEOUT, hub_reason
from _inf.parts.images.rows import with_images
from _inf.runtime import quiet
from _inf.runtime.extras import require_verl
from _inf.types import python_value

UNKNOWN_SOURCE = "unknown"  # as verl's validation calls rows without a data_source
COLUMNS = (
    ("reward_model", dict, "an object"),
    ("extra_info", dict, "an object"),
    ("data_source", str, "a name"),
    ("agent_name", str, "the name of an agent loop"),
)
AGENT_NAME = "agent_name"
NOT_COLUMNS = (AGENT_NAME, "raw_prompt")  # verl takes the first one out, and writes the other


@dataclasses.dataclass(frozen=True)
class EvalData:
    """The data of an evaluation and the reward that fits it.

    rows: as `read_examples` takes them. name: how the report names them. stem: the beginning of the
    names of the files that are written. reward: a function, "FILE.py:NAME", or None for verl's.
    """

    rows: object
    name: str
    stem: Path
    reward: RewardFunction | str | None = None


@dataclasses.dataclass(frozen=True)
class Example:
    """One row of the data.

    number: its place in the data, from 0. extra_info: may have `tools_kwargs` and
    `interaction_kwargs`. agent_name: the agent loop of this row. columns: all but the prompt and
    `agent_name`, as they are.
    """

    number: int
    prompt: object
    data_source: str
    ground_truth: object
    extra_info: dict[str, object]
    agent_name: str | None = None
    columns: dict[str, object] = dataclasses.field(default_factory=dict)

    def params(self, *, tools: bool, interactions: bool) -> dict[str, object]:
        """Return the row's keywords for `generate`. Like verl's rollout, it leaves out keywords of
        tools or interactions that the call does not have."""
        found: dict[str, object] = {}
        named, interaction = (
            self.extra_info.get(k) for k in ("tools_kwargs", "interaction_kwargs")
        )
        if tools and isinstance(named, Mapping):  # {} is of a row without tools
            # A table has each key in all of its rows.
            found["tools_kwargs"] = {k: v for k, v in named.items() if v is not None}
        elif tools and named is not None:
            found["tools_kwargs"] = named
        if interactions and interaction:
            found["interaction_kwargs"] = interaction
        return found

    @property
    def agent_kwargs(self) -> dict[str, object]:
        """Return what verl 0.6.1 passes to an agent loop's `run` in addition to the messages: all
        columns, and the ones that its data set (`utils/dataset/rl_dataset.py`, `__getitem__`) and
        its trainer (`trainer/ppo/ray_trainer.py`, `_validate`) make. `uid`, which is random there,
        is the row's number here."""
        info = self.extra_info
        return {
            "uid": str(self.number),
            **self.columns,
            "extra_info": info,
            "index": info.get("index", 0),
            "tools_kwargs": info.get("tools_kwargs", {}),
            "interaction_kwargs": info.get("interaction_kwargs", {}),
        }


def read_examples(
    data: object, *, prompt_key: str = "prompt", shuffle_seed: int | None = None
) -> list[Example]:
    """Read a path, a `datasets.Dataset`, a pandas table or a list of rows.

    Raises `ConfigError` with row and key.
    """
    where = str(data) if isinstance(data, str | os.PathLike) else "data"
    rows = list(_rows(data, where))
    if not rows:
        raise ConfigError(f"{where}: it has no rows.")
    order = list(range(len(rows)))
    if shuffle_seed is not None:
        random.Random(shuffle_seed).shuffle(order)
    return [_example(rows[number], number, prompt_key, where) for number in order]


def _rows(data: Any, where: str) -> Iterable[Any]:
    if isinstance(data, str | os.PathLike):
        return file_rows(Path(data))
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas, whose missing text is NaN
        return list(data.astype(object).where(data.notna(), None).to_dict("records"))
    if hasattr(data, "to_list"):  # datasets
        return list(data.to_list())
    if isinstance(data, Sequence):
        return data
    raise ConfigError(f"{where}: it must be a path, a table or a list of rows, not {shown(data)}.")


def file_rows(path: Path) -> list[object]:
    """Return the rows of a file: .parquet, .jsonl, or .json with a list."""
    if path.suffix == ".jsonl":
        return [row for _, row in json_lines(path)]
    if path.suffix not in (".parquet", ".json"):
        raise ConfigError(f"{path}: the name of a file of rows ends in .parquet, .jsonl or .json.")
    try:
        if path.suffix == ".parquet":
            return _parquet_rows(path)
        rows = json.loads(path.read_bytes())
    except (OSError, ValueError) as failure:
        raise ConfigError(f"{path} cannot be read: {failure}") from None
    if not isinstance(rows, list):
        raise ConfigError(f"{path}: it must be a list of rows, not {shown(rows)}.")
    return rows


def _parquet_rows(path: Path) -> list[object]:
    """The rows as they are: in a pandas table a column of whole numbers where one is missing has
    floats. The index of a table that pandas wrote is no column."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    columns = [name for name in table.column_names if name not in index]
    return list(table.select(columns).to_pylist())


def benchmark_rows(path: Path | None, repository: str, name: str) -> list[object]:
    """Return the rows of a file, or of one of the Hub's data set, which is downloaded once."""
    if path is not None:
        return file_rows(path)
    from huggingface_hub import HfApi, hf_hub_download

    reason = ""
    try:
        HfApi().dataset_info(repository, timeout=HUB_TIMEOUT)  # a download would try for 20 s
    except Exception as failure:
        reason = f"{hub_reason(failure, repository)}. It was not downloaded before, either"
    try:
        with quiet.third_party():
            file = hf_hub_download(
                repository, name, repo_type="dataset", local_files_only=bool(reason)
            )
    except Exception as failure:
        raise InferenceError(
            f"{repository}: {reason or hub_reason(failure, repository)}. Name a file of its "
            "problems instead: --data FILE, such as examples/problems.jsonl for gsm8k."
        ) from failure
    return file_rows(Path(file))


def verl_row(
    data_source: str, question: str, truth: str | None, extra_info: Mapping[str, object]
) -> dict[str, Any]:
    return {
        "data_source": data_source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": extra_info,
    }


def _example(row: object, number: int, prompt_key: str, where: str) -> Example:
    place = f"{where}, row {number}"
    if not isinstance(row, Mapping):
        raise ConfigError(f"{place}: it must be an object with named values, not {shown(row)}.")
    values = python_value(row)
    # A table has NaN where a row lacks a value.
    row = {str(k): None if isinstance(v, float) and v != v else v for k, v in values.items()}
    if row.get(prompt_key) is None:
        raise ConfigError(
            f"{place}: the key {prompt_key!r} is missing; it has {', '.join(sorted(row))}. Name "
            "the key of the prompts with --prompt-key."
        )
    for key, kind, what in COLUMNS:
        if not isinstance(row.get(key), kind | None):
            raise ConfigError(f"{place}: {key} must be {what}, not {shown(row[key])}.")
    return Example(
        number=number,
        prompt=with_images(row[prompt_key], row, place),
        data_source=row.get("data_source") or UNKNOWN_SOURCE,
        ground_truth=(row.get("reward_model") or {}).get("ground_truth"),
        extra_info=row.get("extra_info") or {},
        agent_name=row.get(AGENT_NAME) or None,
        columns={k: v for k, v in row.items() if k not in (prompt_key, *NOT_COLUMNS)},
    )


def check_for_verls_reward(example: Example) -> None:
    """verl's `default_compute_score` chooses by data_source, and compares with a ground truth."""
    require_verl("reward")
    truth, has_source = example.ground_truth, example.data_source != UNKNOWN_SOURCE
    if truth is None or not has_source:
        lacks = "reward_model.ground_truth" if has_source else "data_source"
        raise ConfigError(
            f"row {example.number}: {lacks} is missing, which verl's default_compute_score "
            "needs; add it, or give a reward function of your own."
        )
    if isinstance(truth, int | float):
        raise ConfigError(
            f"row {example.number}: reward_model.ground_truth is the number {truth}; verl's "
            f'default_compute_score compares text: no answer would be right. Write "{truth}".'
        )
