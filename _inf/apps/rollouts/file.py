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
    rollouts = as_rollouts(rows, tokenizer)
    lines = [_line(rollout, f"rows[{place}]") for place, rollout in enumerate(rollouts)]
    try:
        Path(path).write_text("".join(lines), encoding="utf-8")
    except OSError as failure:
        raise ConfigError(f"{path}: {failure.strerror}; name a file that can be written.") from None


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


def load_rollouts(path: str | os.PathLike[str]) -> list[Rollout]:
    """Read a file of rollouts: of `save_rollouts`, `inf eval` or `inf batch --rollouts`.

    Raises `ConfigError` with the file, the line and the key that is wrong.
    """
    rollouts = []
    for number, row in json_lines(path):
        row_id = row.get("line", number) if isinstance(row, dict) else number
        rollouts.append(Rollout.of(row, f"{path}, line {number}", str(row_id)))
    return rollouts
