"""What the benchmarks share: common options, a description of the machine, and spreads."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import psutil
import typer

ConfigFile: TypeAlias = Annotated[str | None, typer.Option("--config", "-c", help="A YAML file.")]
Assignments: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One config key.")
]
JsonFile: TypeAlias = Annotated[Path | None, typer.Option("--json", help="Raw numbers go here.")]


def machine() -> dict[str, Any]:
    """Describe the machine and the versions, which figures need."""
    cpu = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu[0].split(":")[1].strip() if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "load_average": os.getloadavg()[0],
    }


def footer(about: dict[str, Any]) -> str:
    """The last line of what a benchmark prints; about: from `machine`."""
    return f"{about['cores']} cores, {about['memory_gb']} GB, {about['date']}"


def save(file: Path | None, figures: dict[str, Any]) -> None:
    """Write the figures, with machine and command, to the file of `--json`."""
    if file is not None:
        about = {"machine": machine(), "command": sys.argv}
        file.write_text(json.dumps(about | figures, indent=1))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Show the median, with the lowest and the highest value."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours over theirs, pair by pair: a machine's speed drifts, and less within a pair than from
    one to the next. The last pairs may be of one side only; they are left out."""
    return [a / b for a, b in zip(ours, theirs, strict=False)]


def quartiles(values: Sequence[float]) -> str:
    """Show the median and, if there are at least two values, the lower and the upper quartile."""
    middle = f"{statistics.median(values):.3f}"
    if len(values) < 2:
        return middle
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle} ({low:.3f} to {high:.3f})"
