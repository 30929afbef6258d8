"""The part that times our engine beside raw SGLang, with `benchmarks/throughput.py`.

Raw SGLang runs with our arguments, and with its own defaults; ours with either schedule.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from setting import ROOT, Setting

# Tokens per second of ours, over those of raw SGLang with the same arguments.
LEAST_OF_RAW = 0.97  # as on a CPU
CONTESTANTS = ("ours", "raw", "other_schedule", "default")


def one_row_keeps_up_with_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 0)


def a_batch_keeps_up_with_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 1)


def a_large_batch_keeps_up_with_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 2)


def throughput(setting: Setting) -> subprocess.Popen[bytes]:
    """The run of throughput.py, which the first check starts; what it says goes into its log."""
    if setting.program is None:
        size = ("--tokens=128", "--pairs=5") if setting.on_gpu else ("--tokens=8", "--pairs=1")
        which = [f"--contestants={','.join(CONTESTANTS)}", f"--loads={','.join(loads(setting))}"]
        keys = [f"--set={key}" for key in setting.keys("rollout.enforce_eager=false")]
        files = ("--config=config.yaml", f"--json={figures(setting)}", "--profile")
        figures(setting).unlink(missing_ok=True)  # of an earlier call
        command = [sys.executable, "benchmarks/throughput.py", *size, *which, *keys, *files]
        with open(said(), "wb") as log:
            setting.program = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    return setting.program


def said() -> Path:
    return Path(tempfile.gettempdir()) / "throughput.log"


def loads(setting: Setting) -> tuple[str, str, str]:
    return ("1", "64", "256") if setting.on_gpu else ("1", "2", "4")


def figures(setting: Setting) -> Path:
    return setting.out / "throughput.json"


def beside(setting: Setting, place: int) -> Any:
    """Wait until throughput.py has timed a load; a CPU is too noisy for a bar."""
    load, run, over = loads(setting)[place], throughput(setting), False
    while (report := read(figures(setting)))["loads"].get(load) is None:
        assert not over, f"throughput.py ended: {said().read_text(errors='replace')[-3000:]}"
        over = run.poll() is not None
        time.sleep(0.2)
    pairs: dict[str, list[float]] = report["loads"][load]
    assert "raw" in pairs, report["failures"].get("raw", "raw SGLang was not timed")
    detail: dict[str, Any] = {"rows": int(load)}
    for name, each in pairs.items():
        rate = statistics.median(each)
        step = 1000 * int(load) / rate
        busy = report["gpu_share"][load].get(name)
        detail[name] = {
            "tokens_per_second": round(rate, 1),
            "ours_over_it": round(median_ratio(pairs, name), 3),
            "ms_a_step": round(step, 3),
            "gpu_ms_a_step": busy and round(step * busy, 3),
            "host_ms_a_step": busy and round(step * (1 - busy), 3),
        }
    detail |= {f"failed: {name}": why[-500:] for name, why in report["failures"].items()}
    assert not setting.on_gpu or median_ratio(pairs, "raw") >= LEAST_OF_RAW, (
        f"below {LEAST_OF_RAW}: {detail}"
    )
    return detail


def median_ratio(pairs: dict[str, list[float]], name: str) -> float:
    from common import ratios

    return statistics.median(ratios(pairs["ours"], pairs[name]))


def read(file: Path) -> dict[str, Any]:
    """What throughput.py has written so far."""
    try:
        report: dict[str, Any] = json.loads(file.read_text())
        return report
    except (OSError, ValueError):  # not yet, or only half
        return {"loads": {}}


CHECKS = (
    one_row_keeps_up_with_raw_sglang,
    a_batch_keeps_up_with_raw_sglang,
    a_large_batch_keeps_up_with_raw_sglang,
)
