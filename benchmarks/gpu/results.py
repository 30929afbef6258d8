"""The results of checks: a file of JSON lines that is complete after each line.

A line: part, check, passed (true, false, or null for a check that was not made), seconds, detail;
or, after the last check of a part, only part and seconds.
"""

from __future__ import annotations

import contextlib
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
        self._write(result)
        print(line(result), flush=True)

    def ended(self, part: str, seconds: float) -> None:
        self._write({"part": part, "seconds": seconds})

    def begin(self, part: str) -> None:
        """Forget what an earlier run of this part, which did not come to its end, has found."""
        kept = [each for each in self.lines() if each["part"] != part]
        self.file.write_text("".join(json.dumps(each) + "\n" for each in kept))

    def _write(self, result: Result) -> None:
        with open(self.file, "a") as lines:
            print(json.dumps(result, default=str), file=lines, flush=True)
            os.fsync(lines.fileno())

    def of(self, part: str) -> list[Result]:
        """The checks of a part."""
        return [each for each in self.lines() if each["part"] == part and "check" in each]

    def lines(self) -> list[Result]:
        """All that was written; a line that a kill has cut is left out."""
        found = []
        for text in self.file.read_text().splitlines() if self.file.exists() else ():
            with contextlib.suppress(ValueError):
                found.append(json.loads(text))
        return found


def line(result: Result) -> str:
    word = {True: "ok", False: "FAILED", None: "-"}[result["passed"]]
    detail = result["detail"]
    text = detail if isinstance(detail, str) else json.dumps(detail, default=str)
    text = "" if detail is None else " ".join(text[:SHOWN].split())
    return f"{word:6} {result['part']}: {result['check']} ({result['seconds']:.1f} s) {text}"


def report(results: Results, parts: Iterable[str]) -> dict[str, Any]:
    """All that is known of these parts: each one's verdict, seconds and checks."""
    ended = {each["part"]: each["seconds"] for each in results.lines() if "check" not in each}
    found: dict[str, Any] = {}
    for part in parts:
        checks = results.of(part)
        failed = any(check["passed"] is False for check in checks)
        verdict = "FAILED" if failed else "ok" if part in ended else "not run"
        found[part] = {"verdict": verdict, "seconds": ended.get(part, 0.0), "checks": checks}
    return {"parts": found, "seconds": round(sum(ended.values()), 1)}


def table(found: dict[str, Any]) -> str:
    """A row a part, and what failed."""
    rows = [f"{'part':12}{'verdict':>9}{'ok':>5}{'failed':>8}{'not made':>10}{'seconds':>9}"]
    failed = []
    for part, its in found["parts"].items():
        verdicts = [check["passed"] for check in its["checks"]]
        counts = [sum(each is passed for each in verdicts) for passed in (True, False, None)]
        rows.append(
            f"{part:12}{its['verdict']:>9}{counts[0]:5}{counts[1]:8}{counts[2]:10}"
            f"{its['seconds']:9.1f}"
        )
        failed += [line(check) for check in its["checks"] if check["passed"] is False]
    if waiting := [part for part, its in found["parts"].items() if its["verdict"] == "not run"]:
        failed.append(f"not run yet: {', '.join(waiting)}; the same command goes on with them")
    return "\n".join([*rows, *failed])
