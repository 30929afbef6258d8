"""A file of JSON lines that no crash leaves half written, for one process at a time.

`append` returns when the rows are on disk. What a killed process began is cut off by `cut`, before
anything is read or appended. Knows nothing of what the rows mean.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError, InferenceError

BLOCK = 1 << 16


class AppendLog:
    """Opens the file, or makes it, and keeps others from it until `close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as failure:
            raise ConfigError(
                f"{path}: {failure.strerror}; name a file that can be written."
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise ConfigError(f"{path}: another run is writing it; wait for its end.") from None

    @property
    def empty(self) -> bool:
        return os.fstat(self._file).st_size == 0

    def clear(self) -> None:
        os.ftruncate(self._file, 0)

    def cut(self) -> int:
        """Cut a last line without its end, and count the lines."""
        lines = whole = place = 0
        while block := os.pread(self._file, BLOCK, place):
            lines += block.count(b"\n")
            whole = place + block.rindex(b"\n") + 1 if b"\n" in block else whole
            place += len(block)
        os.ftruncate(self._file, whole)
        return lines

    def rows(self) -> Iterator[dict[str, Any]]:
        with open(self.path, "rb") as file:
            for line in file:
                yield json.loads(line)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raises `not_written` where the disk takes no more."""
        data = memoryview(b"".join(map(_line, rows)))
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as failure:
            raise not_written(self.path, failure) from failure

    def close(self) -> None:
        os.close(self._file)


def not_written(path: Path, failure: OSError) -> InferenceError:
    return InferenceError(
        f"{path}: {failure.strerror}. The rows before are safe: when it can be written again, the "
        "same command goes on after them."
    )


def _line(row: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(row).encode() + b"\n"
