"""Measures a start, from `python` to the first answer, in multiples of the unavoidable imports.

    python benchmarks/startup.py
    python benchmarks/startup.py --runs 5 --imports --json out.json
    python benchmarks/startup.py --set rollout.name=hf

Each run times these one after the other, under the same conditions: `import torch, transformers,
ray, tensordict` in a fresh interpreter (the unit); a fresh interpreter that imports inf, builds
`InferenceEngine()`, answers with one token, restarts and answers again; `inf --help`; and a command
that answers with one token, until it has exited. The table has the medians in seconds, their
multiples of the unit, and the required multiples.

`--imports` also runs `python -X importtime` on `import inf`, on what the caller's process imports
for an engine, and on what the fork server imports, and shows each package's own seconds. The first
run after an installation is slower, because the disk is cold.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from typing import Annotated

import typer
from common import Assignments, JsonFile, machine, save, spread
from rich.console import Console
from rich.table import Table

from _inf.config import parse_assignments

SHOWN_SECONDS = 0.05
UNIT = "import torch, transformers, ray, tensordict"
FIRST, RESTART, IMPORT, HELP = "first answer", "restart() and an answer", "import inf", "inf --help"
COMMAND = 'inf "Hello!", to its exit'
# Multiples of the unit.
GOALS = {FIRST: 2.0, RESTART: 1.3, IMPORT: 0.1, HELP: 0.2, COMMAND: 2.3}
PROGRAM = """
import json, time
times = {"python": time.monotonic()}
from inf import InferenceEngine
times["import inf"] = time.monotonic()
with InferenceEngine(**CONFIG) as engine:
    times["ready"] = time.monotonic()
    engine.generate("Hello!", max_tokens=1)
    times["first answer"] = time.monotonic()
    engine.restart()
    engine.generate("Hello!", max_tokens=1)
    times["restart() and an answer"] = time.monotonic()
print(json.dumps(times))
"""
IMPORTED = {
    "import inf": "import inf",
    "the caller, for an engine": "from inf import InferenceEngine; InferenceEngine().shutdown()",
    "the fork server": "import _inf.backends.verl.environment as environment;"
    "environment.prepare('cpu'); import _inf.backends.verl.child.setup as setup;"
    "setup.import_all(__import__('pathlib').Path('log'))",
}
IMPORT_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")


def main(
    runs: Annotated[int, typer.Option(help="Starts.")] = 3,
    imports: Annotated[bool, typer.Option(help="Show what is imported.")] = False,
    json_file: JsonFile = None,
    assignments: Assignments = None,
) -> None:
    results = []
    for run in range(runs):
        results.append(measured(assignments or []))
        status = f"run {run + 1} of {runs}: {results[-1][FIRST]:.1f} s to an answer"
        Console(stderr=True).print(status, highlight=False)
    save(json_file, {"runs": results})
    show(results)
    for title, code in IMPORTED.items() if imports else ():
        show_imports(title, code)


def measured(assignments: list[str]) -> dict[str, float]:
    """Do one run; return seconds by name."""
    config = parse_assignments(assignments)
    unit, _ = timed(UNIT)
    begin = time.monotonic()
    _, out = timed(f"CONFIG = {config!r}{PROGRAM}")
    moments = json.loads(out.splitlines()[-1])
    seconds = {name: moments[name] - begin for name in (IMPORT, "ready", FIRST)}
    seconds[RESTART] = moments[RESTART] - moments[FIRST]
    program = "import _inf.apps.cli as cli; cli.main()"
    seconds[HELP], _ = timed(program, "--help")
    keys = [text for assignment in assignments for text in ("--set", assignment)]
    seconds[COMMAND], _ = timed(program, "Hello!", "--max-tokens", "1", *keys)
    return {UNIT: unit} | seconds


def timed(code: str, *arguments: str) -> tuple[float, str]:
    """Return the seconds that a fresh interpreter takes for `code`, and its output."""
    begin = time.monotonic()
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    return time.monotonic() - begin, done.stdout


def show(results: list[dict[str, float]]) -> None:
    about, unit = machine(), statistics.median(run[UNIT] for run in results)
    table = Table("", "seconds", "multiple", "goal", title=f"a start, {about['cpu']}")
    for name in results[0]:
        seconds = [run[name] for run in results]
        multiple = f"{statistics.median(seconds) / unit:.2f}"
        table.add_row(name, spread(seconds), multiple, str(GOALS.get(name, "")))
    console = Console(width=120)
    console.print(table)
    console.print(f"{about['cores']} cores, {about['date']}", highlight=False)


def show_imports(title: str, code: str) -> None:
    """Show the packages that take longest to import, without their imports of other packages."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    seconds: Counter[str] = Counter()
    for microseconds, module in IMPORT_LINE.findall(done.stderr):
        seconds[module.partition(".")[0]] += int(microseconds) / 1e6  # type: ignore[assignment]
    table = Table("package", "own seconds", title=f"{title}: {sum(seconds.values()):.2f} s")
    for package, took in seconds.most_common():
        if took >= SHOWN_SECONDS:
            table.add_row(package, f"{took:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
