"""Reads files of rows: rollouts of this library, and the samples that trainers write."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from _inf.apps.json_lines import json_lines
from _inf.apps.rollouts.rollout import SAYS_SOMETHING, Rollout
from _inf.apps.rollouts.sources import as_rollouts
from _inf.apps.rollouts.traces import is_trace_file, load_traces
from _inf.apps.rollouts.trainers import looked_for, reader_of, rollouts_of
from _inf.apps.rollouts.trainers.reader import finite
from _inf.apps.rollouts.trainers.whole_files import WHOLE
from _inf.errors import ConfigError, shown
from _inf.runtime.files import rereadable

# Files whose names say that they cannot be read, and what to do.
REFUSED = {
    ".gz": "unpack it first, with gunzip.",
    ".pkl": "to load a pickle is to run the code in it, so none is read; of SkyRL, name "
    "dumped_evals, which has the texts.",
}


def load_rollouts(path: str | os.PathLike[str], *, reward: str | None = None) -> list[Rollout]:
    """Read a file of rollouts: of `save_rollouts`, `inf eval`, `inf batch --rollouts`, the traces
    of `inf serve --traces`, or the samples of one step that a trainer wrote (docs/your_run.md).

    reward: take this one of the `reward_scores` or other keys of a trainer's row as its reward.
    Raises `ConfigError` with the file, the line and the key that is wrong.
    """
    check_name(Path(path))
    if Path(path).suffix in WHOLE:
        rows = whole_file(Path(path))
    else:
        with rereadable(path) as file:
            if is_trace_file(file):
                return as_rollouts(load_traces(file))
            lines = [(at, row, f"{path}, line {at}") for at, row in json_lines(file)]
        rows = [row for at, line, where in lines for row in rollouts_of_line(line, at, where)]
    return [with_reward(row, reward) for row in rows]


def check_name(path: Path) -> None:
    """Raise `ConfigError` for a file that is refused by its name."""
    if (why := REFUSED.get(path.suffix)) is not None:
        raise ConfigError(f"{path}: {path.suffix} files are not read; {why}")


def rollouts_of_line(row: object, line: int, where: str) -> list[Rollout]:
    """Return the rows of a line of a file of rollouts, or of a trainer's. line: its number, from 1;
    where: begins an error."""
    if (reader := reader_of(row)) is not None and isinstance(row, dict):
        return rollouts_of(reader, row, str(line), where)
    if isinstance(row, Mapping) and all(row.get(name) is None for name in SAYS_SOMETHING):
        raise _unknown(row, where)
    row_id = row.get("line", line) if isinstance(row, Mapping) else line
    return [Rollout.of(row, where, str(row_id))]


def whole_file(path: Path) -> list[Rollout]:
    """Return the rows of a table or a .pt file."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file.")
    piece = WHOLE[path.suffix](path)
    if (reader := reader_of(piece, path.suffix)) is None:
        raise _unknown(piece if isinstance(piece, dict) else {}, str(path))
    return rollouts_of(reader, piece, "", str(path))


def with_reward(row: Rollout, name: str | None) -> Rollout:
    """Return the row with another of its figures as the reward."""
    if name is None:
        return row
    known = {**row.extra, **(row.reward_scores or {})}
    return dataclasses.replace(row, reward=finite(known.get(name)))


def _unknown(row: Mapping[str, object], where: str) -> ConfigError:
    return ConfigError(
        f"{where}: it has none of {', '.join(SAYS_SOMETHING)}, so it is not a rollout of inf eval, "
        "inf batch --rollouts or inf.save_rollouts; nor is it of a trainer, whose keys would be: "
        f"{looked_for()}. Its keys: {shown(list(row))}."
    )
