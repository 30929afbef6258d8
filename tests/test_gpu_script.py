"""`benchmarks/gpu.sh` on a machine without a GPU: what it runs, records, skips and survives."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[1]
BATCH = "rows_256_are_as_fast_as_raw_sglang", "time_of_256_rows_is_told_if_they_are_slower"
PREFLIGHT = "packages_of_the_engine_are_installed"


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    """The names of `benchmarks/gpu`, its modules among them."""
    return runpy.run_path(str(ROOT / "benchmarks/gpu"), run_name="gpu")


class Run:
    """A finished run of the script: its exit code, all that it showed, its results."""

    def __init__(self, out: Path, *options: str, **variables: str) -> None:
        command = ["bash", str(ROOT / "benchmarks/gpu.sh"), "--device", "cpu", "--out", str(out)]
        environment = {**os.environ, "PYTHON": sys.executable, **variables}
        done = subprocess.run(
            [*command, *options], env=environment, capture_output=True, text=True, timeout=1500
        )
        self.code, self.shown = done.returncode, done.stdout + done.stderr
        lines = (out / "results.jsonl").read_text() if (out / "results.jsonl").exists() else ""
        every = [json.loads(line) for line in lines.splitlines()]
        self.results = [each for each in every if "check" in each]
        self.ended = [each["part"] for each in every if "check" not in each]
        report = out / "report.json"
        self.report = json.loads(report.read_text())["parts"] if report.exists() else {}
        self.verdicts = {part: its["verdict"] for part, its in self.report.items()}

    def __getitem__(self, check: str) -> Any:
        [result] = [each for each in self.results if each["check"] == check]
        return result


@pytest.mark.soak  # fourteen engines
@pytest.mark.engine
def test_all_parts_run_to_their_end(tmp_path: Path, program: dict[str, Any]) -> None:
    run = Run(tmp_path, "--budget", "1400", "--limit", "600")
    known = [(part, check.__name__) for part, its in program["PARTS"].items() for check in its]
    assert [(each["part"], each["check"]) for each in run.results] == known, run.shown
    assert run.code == 0, run.shown
    unmade = {each["check"]: each["detail"] for each in run.results if each["passed"] is None}
    for name in ("without_graphs", "able_to_sleep", "with_graphs_alone"):
        assert "an earlier check runs" in unmade.pop(f"engine_starts_{name}")
    assert all("needs a GPU" in why for why in unmade.values()), unmade
    timed, told = (run[name]["detail"] for name in BATCH)
    for name in ("ours", "raw", "default"):
        assert timed[name]["tokens_per_second"] > 0 and told[name]["gpu_ms_a_step"] > 0
        assert any("scheduler, percent" in process for process in told[name])
    assert "=== throughput: default-" in (tmp_path / "engines.log").read_text()
    assert run.shown == (tmp_path / "log.txt").read_text()
    assert not (tmp_path / "work").exists()


@pytest.mark.verl
def test_part_that_fails_or_takes_too_long_says_so_and_the_next_one_runs(
    tmp_path: Path, program: dict[str, Any]
) -> None:
    options = ("--limit", "exact=1", "--set", "rollout.nonsense=1")
    run = Run(tmp_path, "--parts", "exact,embedded,preflight", *options)
    assert run.code == 1
    first, *others = (each for each in run.results if each["part"] == "exact")
    assert first["passed"] is False and "its limit of 1 s" in first["detail"]
    assert [each["passed"] for each in others] == [None] * (len(program["PARTS"]["exact"]) - 1)
    failed = run["default_engine_says_paris"]
    assert failed["passed"] is False and "rollout.nonsense" in failed["detail"]
    assert "embedded: default_engine_says_paris" in run.shown.splitlines()[-1]
    assert run.verdicts == {"exact": "FAILED", "embedded": "FAILED", "preflight": "ok"}
    every = psutil.process_iter(["cmdline"])
    assert not any(str(tmp_path) in word for each in every for word in each.info["cmdline"] or ())


@pytest.mark.verl
def test_call_goes_on_where_the_last_one_ended(tmp_path: Path, program: dict[str, Any]) -> None:
    """Also after one that was cut in the middle of a part, whose result is then forgotten."""
    out, copy = tmp_path / "out", tmp_path / "copy"
    copy.mkdir()
    first = Run(out, "--budget", "0")
    assert first.code == 0 and not first.results
    assert {*first.verdicts.values()} == {"not run"}
    cut = {"part": "preflight", "check": PREFLIGHT, "passed": False, "seconds": 1, "detail": ""}
    (out / "results.jsonl").write_text(json.dumps(cut) + "\n")
    parts = ("--parts", "compile,preflight")
    second, third = (Run(out, *parts, OUT=str(copy)) for _ in range(2))
    for run in (second, third):
        assert run.code == 0, run.shown
        assert run.ended == ["compile", "preflight"] and run[PREFLIGHT]["passed"]
    assert "ok     preflight" in second.shown and "ok     preflight" not in third.shown
    assert json.loads((copy / "report.json").read_text())["parts"] == third.report
    other = Run(out, *parts, "--set", "rollout.dtype=float16")
    assert other.code == 2 and "results of other options" in other.shown
