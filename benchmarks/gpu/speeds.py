"""The part that times our engine beside raw SGLang, with `benchmarks/throughput.py`.

Raw SGLang runs with our arguments, and with its own defaults. Where ours is slower than the better
of the two, the check after the timing tells how long the GPU is busy in a step, and in which lines
of Python the scheduler and the caller spend their time meanwhile.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results import Skip
from setting import ROOT, Setting, free_gpu_bytes

if TYPE_CHECKING:
    from throughput import Race

GOAL = 1.0  # ours over the better of the two, in tokens per second
CONTESTANTS = ["ours", "raw", "default"]
SAMPLER = Path(__file__).with_name("sampler")
ON_A_CPU = {256: 4, 1024: 6, 512: 5, 64: 2, 1: 1}  # rows, in place of these
PAIRS, SECONDS = 9, 50  # of each width, at most
TOLD = 6  # lines of a process in the results; throughput.json has more
WAITS = 99.0  # percent of the samples of a thread that does nothing


def rows_256_are_as_fast_as_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 256)


def time_of_256_rows_is_told_if_they_are_slower(setting: Setting) -> Any:
    return told(setting, 256)


def rows_1024_are_as_fast_as_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 1024)


def time_of_1024_rows_is_told_if_they_are_slower(setting: Setting) -> Any:
    return told(setting, 1024)


def rows_512_are_as_fast_as_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 512)


def time_of_512_rows_is_told_if_they_are_slower(setting: Setting) -> Any:
    return told(setting, 512)


def rows_64_are_as_fast_as_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 64)


def time_of_64_rows_is_told_if_they_are_slower(setting: Setting) -> Any:
    return told(setting, 64)


def one_row_is_as_fast_as_raw_sglang(setting: Setting) -> Any:
    return beside(setting, 1)


def one_row_waits_for_its_weights(setting: Setting) -> Any:
    """Milliseconds of a token, without the prompt, beside those of reading the weights once."""
    import torch
    from contestants import copy_bandwidth
    from safetensors import safe_open
    from throughput import prompt_tokens, rows

    race, short = started(setting), size(setting)[0]
    with safe_open(setting.model / "model.safetensors", framework="pt") as file:
        sizes = {name: file.get_tensor(name).nbytes for name in file.keys()}  # noqa: SIM118
    read = sum(size for name, size in sizes.items() if "embed_tokens" not in name)
    bandwidth = copy_bandwidth(torch, setting.device)
    texts, _ = rows("1", 1, seed="one row")
    prompts = race.ask("ours", texts=texts, cut=prompt_tokens("1"))
    detail = {"weights_gb": read / 1e9, "copied_gb_a_second": round(bandwidth / 1e9, 1)}
    least = 1000 * read / bandwidth
    for name in list(race.running):
        times = [
            [race.ask(name, prompts=prompts, limits=[limit])["seconds"] for _ in range(5)]
            for limit in (short, 2 * short)
        ]
        took = 1000 * (min(times[1]) - min(times[0])) / short
        detail[name] = {"ms_a_token": round(took, 3), "times_the_limit": round(took / least, 2)}
    return {"limit_ms_a_token": round(least, 3), **detail}


def size(setting: Setting) -> tuple[int, int]:
    """Tokens of an answer, and pairs."""
    return (128, PAIRS) if setting.on_gpu else (8, 1)


def started(setting: Setting) -> Race:
    """The engines, which the first check starts."""
    from common import machine
    from throughput import Race

    if setting.race is None:
        samples = Path(tempfile.mkdtemp(prefix="samples-"))
        path = os.environ.get("PYTHONPATH", "")
        os.environ |= {"SAMPLES": str(samples), "PYTHONPATH": f"{SAMPLER}:{path}"}
        cache = 204_800 if free_gpu_bytes() > 100e9 else 98_304  # 1,024 rows at once, or 512
        # Each engine counts the memory of those that have started as taken.
        wide = (
            "rollout.gpu_memory_utilization=0.6",
            f"rollout.engine_kwargs.sglang.max_total_tokens={cache}",
            "rollout.max_num_seqs=1024",
            "rollout.cudagraph_capture_sizes=[1,8,64,256,512,1024]",
        )
        keys = setting.keys("rollout.enforce_eager=false", *(wide if setting.on_gpu else ()))
        race = setting.undo.enter_context(Race(CONTESTANTS, str(ROOT / "config.yaml"), keys))
        setting.race = race
        known = {"machine": machine(), "tokens": size(setting)[0], "failures": race.failures}
        setting.report = {**known, "engine": race.running["ours"].ready["engine"], "loads": {}}
        setting.report["slower"] = {}
    return setting.race


def beside(setting: Setting, width: int) -> Any:
    """Time a number of rows; a CPU is too noisy for a bar."""
    from common import ratios, save
    from throughput import measure

    count = width if setting.on_gpu else ON_A_CPU[width]
    race, (tokens, pairs) = started(setting), size(setting)
    rates = measure(race, str(count), pairs, tokens, SECONDS)
    setting.report["loads"][str(count)] = rates
    save(setting.out / "throughput.json", setting.report)
    detail: dict[str, Any] = {"rows": count, "pairs": len(rates["ours"])}
    for name, each in rates.items():
        over = ratios(rates["ours"], each)
        detail[name] = {
            "tokens_per_second": round(statistics.median(each), 1),
            "ours_over_it": round(statistics.median(over), 3),
            "lowest_and_highest": [round(min(over), 3), round(max(over), 3)],
        }
    detail |= {f"failed: {name}": why[-500:] for name, why in race.failures.items()}
    assert "raw" in rates, detail
    assert not setting.on_gpu or over_the_better(rates) >= GOAL, f"below {GOAL}: {detail}"
    return detail


def over_the_better(rates: dict[str, list[float]]) -> float:
    from common import ratios

    others = {name: statistics.median(each) for name, each in rates.items() if name != "ours"}
    better = max(others, key=lambda name: others[name])
    return round(statistics.median(ratios(rates["ours"], rates[better])), 2)


def told(setting: Setting, width: int) -> Any:
    """Of each engine: milliseconds of a step, of the GPU and of the host while the GPU waits, and
    the lines of each of its processes with the most samples, in percent."""
    from common import save
    from throughput import prompt_tokens, rows

    count = width if setting.on_gpu else ON_A_CPU[width]
    race, tokens = started(setting), size(setting)[0]
    rates = setting.report["loads"].get(str(count))
    if rates is None or (setting.on_gpu and over_the_better(rates) >= GOAL):
        raise Skip("these rows were not timed" if rates is None else "ours is not slower")
    texts, limits = rows(str(count), tokens, seed=f"{count} profile")
    job = {"limits": limits, "prompts": race.ask("ours", texts=texts, cut=prompt_tokens("1"))}
    found: dict[str, Any] = {}
    for name in list(race.running):
        step = 1000 * count / statistics.median(rates[name])
        processes = sampled(race, name, job)
        with tempfile.TemporaryDirectory() as folder:
            answer = race.ask(name, **job, profile=folder)
        busy = answer["share"] if answer else 0.0
        times = {"gpu_ms_a_step": step * busy, "host_ms_a_step": step * (1 - busy)}
        found[name] = {"ms_a_step": step, **times, "processes": processes}
    setting.report["slower"][str(count)] = found
    save(setting.out / "throughput.json", setting.report)
    return {name: shortened(each) for name, each in found.items()}


def sampled(race: Race, name: str, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Where the processes of a contestant spend the time of three calls: the caller's is first."""
    folder = Path(os.environ["SAMPLES"])
    (folder / "on").touch()
    for _ in range(3):
        race.ask(name, **job)
    (folder / "on").unlink()
    time.sleep(1)  # until they have written
    tree = race.running[name].tree() if name in race.running else []
    found = [
        {"process": process.name(), **json.loads(file.read_text())}
        for process in tree
        if (file := folder / f"{process.pid}.json").exists()
    ]
    for file in folder.glob("*.json"):
        file.unlink()
    return found


def shortened(found: dict[str, Any]) -> dict[str, Any]:
    figures = {key: round(value, 3) for key, value in found.items() if key != "processes"}
    for number, process in enumerate(found["processes"]):
        shares = {
            line: round(100 * count / process["samples"], 1)
            for line, count in process["lines"].items()
        }
        works = [(line, share) for line, share in shares.items() if share < WAITS]
        if works:
            figures[f"{number} {process['process']}, percent"] = dict(works[:TOLD])
    return figures


CHECKS = (
    rows_256_are_as_fast_as_raw_sglang,
    time_of_256_rows_is_told_if_they_are_slower,
    rows_1024_are_as_fast_as_raw_sglang,
    time_of_1024_rows_is_told_if_they_are_slower,
    rows_512_are_as_fast_as_raw_sglang,
    time_of_512_rows_is_told_if_they_are_slower,
    rows_64_are_as_fast_as_raw_sglang,
    time_of_64_rows_is_told_if_they_are_slower,
    one_row_is_as_fast_as_raw_sglang,
    one_row_waits_for_its_weights,
)
