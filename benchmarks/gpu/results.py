"""The results of checks: a file of JSON lines that is complete after each line.

A line: part, check, passed (true, false, or null for a check that was not made), seconds, detail.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DETAIL = 4000  # characters
SHOWN = 180

Result = dict[str, Any]


class Skip(Exception):
    """Why a check is not made here."""


class Results:
    """The file, and a line on stdout for each of its lines."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def add(
        self, part: str, check: str, passed: bool | None, seconds: float, detail: object
    ) -> None:
        if isinstance(detail, str):
            detail = detail[:DETAIL]
        result = {
            "part": part,
            "check": check,
            "passed": passed,
            "seconds": round(seconds, 2),
            "detail": detail,
        }
        with open(self.file, "a") as lines:
            print(json.dumps(result, default=str), file=lines, flush=True)
            os.fsync(lines.fileno())
        print(line(result), flush=True)

    def of(self, part: str | None = None) -> list[Result]:
        """Those of one part, or all; a line that a kill has cut is left out."""
        found = []
        for text in self.file.read_text().splitlines() if self.file.exists() else ():
            try:
                result = json.loads(text)
            except ValueError:
                continue
            if part in (None, result["part"]):
                found.append(result)
        return found


def line(result: Result) -> str:
    word = {True: "ok", False: "FAILED", None: "-"}[result["passed"]]
    detail = result["detail"]
    text = detail if isinstance(detail, str) else json.dumps(detail, default=str)
    text = "" if detail is None else " ".join(text[:SHOWN].split())
    return f"{word:6} {result['part']}: {result['check']} ({result['seconds']:.1f} s) {text}"


def summary(results: Iterable[Result]) -> str:
    """A table with a row a part, and what failed."""
    parts: dict[str, list[Result]] = {}
    for result in results:
        parts.setdefault(result["part"], []).append(result)
    rows = [f"{'part':12}{'ok':>5}{'failed':>8}{'not made':>10}{'seconds':>9}"]
    for part, its in parts.items():
        counts = [sum(each["passed"] is passed for each in its) for passed in (True, False, None)]
        seconds = sum(each["seconds"] for each in its)
        rows.append(f"{part:12}{counts[0]:5}{counts[1]:8}{counts[2]:10}{seconds:9.1f}")
    failed = [line(each) for its in parts.values() for each in its if each["passed"] is False]
    return "\n".join([*rows, *failed])
