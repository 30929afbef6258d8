"""Reads files of JSON lines, and writes JSON that every reader takes."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from _inf.errors import ConfigError
from _inf.types import JSON


def json_lines(path: str | os.PathLike[str], *, cut: bool = False) -> list[tuple[int, Any]]:
    """Return each line's number, from 1, and its value; blank lines are skipped.

    cut: leave out a last line that does not end.
    Raises `ConfigError` with the line that is not JSON, and for a file without lines.
    """
    try:
        with open(path, "rb") as file:
            texts = [(number, text) for number, text in enumerate(file, 1) if text.strip()]
    except OSError as failure:
        raise ConfigError(f"{path} cannot be read: {failure.strerror}.") from None
    if cut and texts and not texts[-1][1].endswith(b"\n"):
        texts.pop()
    if not texts:
        raise ConfigError(f"{path}: it has no rows.")
    return [(number, json_line(text, f"{path}, line {number}")) for number, text in texts]


def first_row(path: str | os.PathLike[str]) -> JSON:
    """Return the object of the first line; an empty one if there is none."""
    with contextlib.suppress(OSError, RecursionError, ValueError), open(path, "rb") as file:
        row = json.loads(next(filter(bytes.strip, file), b""))
        return row if isinstance(row, dict) else {}
    return {}


def json_text(value: Any, **how: Any) -> str:
    """`json.dumps`, but NaN and infinite numbers, which JSON does not have, become null."""
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        finite = json.loads(json.dumps(value, **how), parse_constant=lambda constant: None)
        return json.dumps(finite, **how)


def json_line(text: bytes, where: str) -> Any:
    """Return a line's value. Raises `ConfigError` if it is not JSON."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as failure:  # also bytes that are not UTF-8
        cut = "" if text.endswith(b"\n") else " (the file ends inside it)"
        raise ConfigError(
            f"{where}: it is not JSON{cut}: {failure}; if a run was stopped while it wrote the "
            "file, resume it first; otherwise correct or remove the line."
        ) from None
