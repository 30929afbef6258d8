"""`benchmarks/throughput.py` with contestants that are programs without an engine."""

from __future__ import annotations

import json
import runpy
import statistics
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _beside_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


# raw ends when it is asked for its first timed run
CONTESTANT = """
import json, sys

name = sys.argv[2]
engine = {"model": "m", "dtype": "float32", "device": "cpu", "max_running_requests": None}
ours = {"engine": engine, "server_args": {"raw": "", "default": {}}}
print(json.dumps(ours if name == "ours" else "ready"), flush=True)
for number, line in enumerate(sys.stdin):
    job = json.loads(line)
    if name == "raw" and number == 1:
        sys.exit("raw is gone")
    answer = {"seconds": 2.0, "tokens": job.get("limits")}
    print(json.dumps([[1]] if "texts" in job else answer), flush=True)
"""


def test_contestant_that_dies_does_not_end_the_others(tmp_path: Path) -> None:
    names: dict[str, Any] = runpy.run_path(str(BENCHMARKS / "throughput.py"))
    (tmp_path / "contestant.py").write_text(CONTESTANT)
    names["Contestant"].program = str(tmp_path / "contestant.py")
    figures = tmp_path / "figures.json"
    with pytest.raises(SystemExit, match="raw is gone"):
        names["main"](
            loads="1,4,2x3", pairs=2, tokens=8, contestants="ours,raw,default", json_file=figures
        )
    report = json.loads(figures.read_text())
    assert list(report["failures"]) == ["raw"] and "raw is gone" in report["failures"]["raw"]
    for load, rows in ("1", 1), ("4", 4), ("2x3", 6):
        rates = report["loads"][load]
        assert list(rates) == ["ours", "default"]
        assert {statistics.median(each) for each in rates.values()} == {rows * 8 / 2.0}


@pytest.mark.parametrize("contestants", ["raw,default", "ours,vllm"])
def test_contestants_are_checked_before_one_starts(contestants: str) -> None:
    names: dict[str, Any] = runpy.run_path(str(BENCHMARKS / "throughput.py"))
    with pytest.raises(SystemExit, match="^--contestants: ours, and any of raw"):
        names["main"](contestants=contestants)
