"""The parts of `benchmarks/gpu.sh`, which runs each in a process of its own.

    python benchmarks/gpu run PART --device cuda --work FOLDER --out FOLDER
    python benchmarks/gpu end PART "why it ended" --seconds N --out FOLDER
                        writes results for the checks that have none
    python benchmarks/gpu summary PART,... --out FOLDER
                        writes report.json and report.txt; exit code 1 if a check failed

Only the standard library is imported until a check needs more, so that a broken machine is
reported, not died of.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import commands
import compiles
import engines
import functions
import hf
import lora
import overlap
import preflight
import speeds
import training
from results import Results, Skip, report, table
from setting import Setting

Check = Callable[[Setting], Any]

PARTS: dict[str, Sequence[Check]] = {
    "compile": compiles.CHECKS,
    "preflight": preflight.CHECKS,
    "throughput": speeds.CHECKS,
    "overlap": overlap.CHECKS,
    "training": (*training.CHECKS, *lora.CHECKS),
    "hf": hf.CHECKS,
    "commands": commands.CHECKS,
    "exact": engines.EXACT,
    "functions": functions.CHECKS,
    "float32": engines.FLOAT32,
    "embedded": engines.EMBEDDED,
}


def run(part: str, setting: Setting, results: Results) -> None:
    """Make the checks of a part in turn; each result is written at once."""
    try:
        for check in PARTS[part]:
            start = time.monotonic()
            passed, detail = made(check, setting)
            results.add(part, check.__name__, passed, time.monotonic() - start, detail)
            if passed is False:
                setting.recover()
    finally:
        setting.close()


def made(check: Check, setting: Setting) -> tuple[bool | None, Any]:
    try:
        return True, check(setting)
    except Skip as why:
        return None, f"skipped: {why}"
    except (Exception, SystemExit) as failure:
        place = traceback.extract_tb(failure.__traceback__)[-1]
        said = f"{type(failure).__name__}: {failure} ({Path(place.filename).name}:{place.lineno}"
        return False, f"{said}: {place.line})\n{setting.end_of_log()}".rstrip()


def end(part: str, why: str, seconds: float, results: Results) -> None:
    """Write results for the checks without one, and that the part has ended. `why`: empty after a
    part that ended well; otherwise the first check without a result is the one that failed."""
    known = {result["check"] for result in results.of(part)}
    missing = [check.__name__ for check in PARTS[part] if check.__name__ not in known]
    for place, name in enumerate(missing):
        detail = why if place == 0 else f"not reached: {why}"
        results.add(part, name, None if place else False, 0.0, detail)
    if why and not missing:
        results.add(part, "process_ends_well", False, 0.0, why)
    results.ended(part, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["run", "end", "summary"])
    parser.add_argument("part", help="of summary: all that were asked for")
    parser.add_argument("why", nargs="?", default="")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--kit", action="store_true")
    parser.add_argument("--gguf")
    parser.add_argument("--set", action="append", default=[], dest="own")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--work", type=Path, default=Path())
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results = Results(given.out / "results.jsonl")
    if given.command == "run":
        results.begin(given.part)
        where = (given.device, given.kit, given.work, given.out, given.gguf, given.own)
        run(given.part, Setting(*where), results)
    elif given.command == "end":
        end(given.part, given.why, given.seconds, results)
    else:
        found = report(results, given.part.split(","))
        (given.out / "report.json").write_text(json.dumps(found, indent=1, default=str) + "\n")
        (given.out / "report.txt").write_text(table(found) + "\n")
        print(table(found))
        sys.exit(any(part["verdict"] == "FAILED" for part in found["parts"].values()))


if __name__ == "__main__":
    main()
