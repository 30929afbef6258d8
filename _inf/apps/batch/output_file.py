"""Writes OUT.jsonl, with a row per input line, and OUT.meta.json, with what the rows depend on.

Rows are appended as they are finished, with the number of their `line`, and sorted at the end. So a
finished answer survives the process (a power cut may take the last ones), and a stopped run can be
resumed with the lines without an answer. If a line has several rows, the last one counts: an answer
may follow an error. Only one process may write at a time.
"""

from __future__ import annotations

import array
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from _inf.apps.json_lines import json_text
from _inf.errors import ConfigError, InferenceError, shown
from _inf.runtime.files import check_output, opened, replaced, write_text

NO_ROW = -1
RESUMES = (
    "The earlier rows are safe: when the file is writable again, the same command resumes after "
    "them."
)
REWARD_ERROR = "reward_error"  # the code of an answer without a reward


class OutputFile:
    """The output file, a context manager, which sorts the rows unless an exception ends it; call
    `begin` before any other method. inputs: files that the run reads."""

    def __init__(self, path: Path, inputs: Iterable[Path] = ()) -> None:
        self.path = path
        self.meta = Path(f"{str(path).removesuffix('.jsonl')}.meta.json")
        self._offsets = array.array("q")  # of the last row of each line: 8 bytes per line
        self._failed: set[int] = set()
        self._superseded = False  # whether a line has two rows
        self._size = 0
        self._new = not check_output(path, inputs=inputs).exists()
        check_output(self.meta, inputs=inputs)
        self._file, self._target = opened(path, "run")

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        try:
            if kind is None:
                self._sort()
        finally:
            if self._new and not self.meta.exists():  # nothing was begun
                self._target.unlink(missing_ok=True)
            os.close(self._file)

    def begin(self, settings: Mapping[str, object], restart: bool) -> None:
        """Resume with the existing rows, or begin a new file; refuse those of a run with another
        `settings`, which is what the answers depend on."""
        settings = json.loads(json.dumps(settings))
        if restart:
            os.ftruncate(self._file, 0)
        if os.fstat(self._file).st_size:
            self._check(settings)
            self._read()
            return
        write_text(self.meta, json.dumps(settings, indent=1) + "\n", then=RESUMES)

    def _check(self, settings: Mapping[str, object]) -> None:
        try:
            earlier = dict(json.loads(self.meta.read_bytes()))
        except (FileNotFoundError, TypeError, ValueError):
            raise ConfigError(
                f"{self.path} holds rows, but {self.meta.name} is missing or unreadable; "
                "name another file, or empty it with --restart."
            ) from None
        # What only one of the two runs has, such as an agent loop, explains other differences.
        both = settings.keys() & earlier.keys()
        for name in sorted({**settings, **earlier}, key=both.__contains__):
            if settings.get(name) != earlier.get(name):
                raise ConfigError(
                    f"{self.path} was started with {name}={shown(earlier.get(name))}, and this run "
                    f"has {name}={shown(settings.get(name))}. Use the old value, name "
                    "another file, or start again with --restart."
                )

    def _read(self) -> None:
        """Find each line's row, and remove a partial row that a crash left at the end."""
        with open(self.path, "rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    break
                try:
                    row = json.loads(text)
                    self._note(row["line"], lacks_answer(row), len(text))
                except (ValueError, TypeError, LookupError):
                    raise ConfigError(
                        f"{self.path}, line {number}: not a row of a run; name another file, or "
                        "start again with --restart."
                    ) from None
        os.ftruncate(self._file, self._size)

    def _note(self, line: int, failed: bool, size: int) -> None:
        self._offsets.extend(itertools.repeat(NO_ROW, line - len(self._offsets)))
        self._superseded |= self._offsets[line - 1] != NO_ROW
        self._offsets[line - 1] = self._size
        (self._failed.add if failed else self._failed.discard)(line)
        self._size += size

    @property
    def failed(self) -> int:
        return len(self._failed)

    @property
    def answered(self) -> int:
        return sum(offset != NO_ROW for offset in self._offsets) - self.failed

    def has_row(self, line: int) -> bool:
        return line <= len(self._offsets) and self._offsets[line - 1] != NO_ROW

    def has_answer(self, line: int) -> bool:
        return self.has_row(line) and line not in self._failed

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in the order of their lines."""
        return map(json.loads, self._texts(self._offsets))

    def row(self, line: int) -> dict[str, Any]:
        """Return the row of a line that has one."""
        return dict(json.loads(next(self._texts([self._offsets[line - 1]]))))

    def _texts(self, offsets: Iterable[int]) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            for offset in offsets:
                if offset != NO_ROW:
                    file.seek(offset)
                    yield file.readline()

    def append(self, line: int, row: Mapping[str, object]) -> None:
        """Append a row; if the disk is full, raise and leave no partial row."""
        text = _json_line({"line": line} | {**row, "line": line})
        try:
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as failure:
            os.ftruncate(self._file, self._size)
            raise InferenceError(f"{self.path}: {failure.strerror}. {RESUMES}") from failure
        self._note(line, lacks_answer(row), len(text))

    def _sort(self) -> None:
        """Sort the rows by line and keep only the last row of each line."""
        starts = (offset for offset in self._offsets if offset != NO_ROW)
        if not self._superseded and all(a < b for a, b in itertools.pairwise(starts)):
            return
        with replaced(self.path, then=RESUMES) as file:
            file.writelines(self._texts(self._offsets))


def is_error(row: Mapping[str, object]) -> bool:
    return row.get("error") is not None


def lacks_answer(row: Mapping[str, Any]) -> bool:
    return is_error(row) and row["error"]["code"] != REWARD_ERROR


def _json_line(row: Mapping[str, object]) -> bytes:
    # A lone surrogate, which a tool call's arguments may have, becomes JSON's own escape.
    return json_text(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
