"""Writes and reads files of rollouts: JSON lines, one row each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from _inf.apps.json_lines import json_lines
from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.sources import as_rollouts
from _inf.errors import ConfigError
from _inf.types import Tokenizer


def save_rollouts(rows: Any, path: str | os.PathLike[str], tokenizer: Tokenizer = None) -> None:
    """Write `as_rollouts(rows, tokenizer)` as JSON lines; an existing file is overwritten.

    Raises `ConfigError`, with nothing written, for a value that JSON cannot keep, such as NaN.
    """
    lines = []
    for place, rollout in enumerate(as_rollouts(rows, tokenizer)):
        try:
            lines.append(json.dumps(rollout.row(), allow_nan=False) + "\n")
        except (TypeError, ValueError) as failure:
            raise ConfigError(f"rows[{place}]: JSON cannot keep it: {_key(rollout)}") from failure
    try:
        Path(path).write_text("".join(lines), encoding="utf-8")
    except OSError as failure:
        raise ConfigError(f"{path}: {failure.strerror}; name a file that can be written.") from None


def _key(rollout: Rollout) -> str:
    """Name the first key whose value JSON cannot keep, and why."""
    for name, value in rollout.row().items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as failure:
            return f"{name}: {failure}; leave it out or replace it."
    return "a key is no text."


def load_rollouts(path: str | os.PathLike[str]) -> list[Rollout]:
    """Read a file of rollouts: of `save_rollouts`, `inf eval` or `inf batch --rollouts`.

    Raises `ConfigError` with the file, the line and the key that is wrong.
    """
    rollouts = []
    for number, row in json_lines(path):
        row_id = row.get("line", number) if isinstance(row, dict) else number
        rollouts.append(Rollout.of(row, f"{path}, line {number}", str(row_id)))
    return rollouts
