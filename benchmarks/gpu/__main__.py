"""The parts of `benchmarks/gpu.sh`, which runs each in a process of its own.

    python benchmarks/gpu run PART --device cuda --work FOLDER --out FOLDER
    python benchmarks/gpu end PART "why it ended" --out FOLDER    results for checks without one
    python benchmarks/gpu summary --out FOLDER                    exit code 1 if a check failed

Only the standard library is imported until a check needs more, so that a broken machine is
reported, not died of.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import engines
import functions
import preflight
from results import Results, Skip, summary
from setting import Setting

Check = Callable[[Setting], Any]

PARTS: dict[str, Sequence[Check]] = {
    "preflight": preflight.CHECKS,
    "smoke": engines.SMOKE,
    "functions": functions.CHECKS,
    "exact": engines.EXACT,
    "throughput": engines.THROUGHPUT,
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


def end(part: str, why: str, results: Results) -> None:
    """Write results for the checks without one. `why`: empty after a part that ended well;
    "skipped: ..." if it was not begun; otherwise the first of them is the one that failed."""
    begun = not why.startswith("skipped")
    known = {result["check"] for result in results.of(part)}
    missing = [check.__name__ for check in PARTS[part] if check.__name__ not in known]
    for place, name in enumerate(missing):
        failed = begun and place == 0
        detail = why if failed or not begun else f"not reached: {why}"
        results.add(part, name, False if failed else None, 0.0, detail)
    if why and begun and not missing:
        results.add(part, "process_ends_well", False, 0.0, why)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["run", "end", "summary"])
    parser.add_argument("part", nargs="?", choices=list(PARTS))
    parser.add_argument("why", nargs="?", default="")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--kit", action="store_true")
    parser.add_argument("--gguf")
    parser.add_argument("--set", action="append", default=[], dest="own")
    parser.add_argument("--work", type=Path, default=Path())
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results = Results(given.out / "results.jsonl")
    if given.command == "run":
        where = (given.device, given.kit, given.work, given.out, given.gguf, given.own)
        run(given.part, Setting(*where), results)
    elif given.command == "end":
        end(given.part, given.why, results)
    else:
        every = results.of()
        print(summary(every))
        sys.exit(any(result["passed"] is False for result in every))


if __name__ == "__main__":
    main()
