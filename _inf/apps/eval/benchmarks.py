"""What `inf eval` asks: the rows of a benchmark with their reward, or those of a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from _inf.apps.eval import gsm8k, reasoning_tasks
from _inf.apps.eval.presets import PRESETS, preset_rows
from _inf.apps.eval.reward_process import RewardFunction
from _inf.errors import ConfigError

GSM8K = "gsm8k"
BENCHMARKS = (GSM8K, *PRESETS)
NAMED = ", ".join((*BENCHMARKS, reasoning_tasks.FORM))


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """rows: what `read_examples` reads. name: theirs in the report. out: the stem of the files.
    reward: None for verl's."""

    rows: Any
    name: str
    out: Path
    reward: RewardFunction | None = None


def benchmark_of(
    source: str,
    file: Path | None,
    shots: int,
    shots_from: Path | None,
    tool: bool,
    size: int | None,
    data_seed: int | None,
) -> Benchmark:
    """What `inf eval SOURCE` asks. Raises `ConfigError` for an option of another benchmark."""
    of_gsm8k = {"shots": shots, "shots-from": shots_from, "tool": tool}
    is_task = source.startswith(reasoning_tasks.PREFIX)
    for given, fits, whose in (
        (of_gsm8k, source == GSM8K, GSM8K),
        ({"data": file}, source in BENCHMARKS, ", ".join(BENCHMARKS)),
        ({"size": size, "data-seed": data_seed is not None}, is_task, reasoning_tasks.FORM),
    ):
        asked = [name for name, value in given.items() if value]
        if asked and not fits:
            raise ConfigError(f"--{asked[0]}: it is an option of {whose}, not of {source}.")
    if is_task:
        size = size or reasoning_tasks.SIZE
        seed = reasoning_tasks.SEED if data_seed is None else data_seed
        rows, reward = reasoning_tasks.load(source, size, seed)
        stem = "rg" if "," in source else source.replace(":", "-")
        return Benchmark(rows, f"{source}, size {size}, seed {seed}", Path(stem), reward)
    if source == GSM8K:
        problems = gsm8k.load(file, "test")
        examples = gsm8k.examples(problems, shots, shots_from)
        about = str(file or gsm8k.HUB) + (f", {shots} examples before each" if shots else "")
        rows = gsm8k.rows(problems, examples, tool=tool)
        return Benchmark(rows, about, Path(source), gsm8k.compute_score)
    if source in PRESETS:
        about = str(file or PRESETS[source].hub)
        return Benchmark(preset_rows(source, file), about, Path(source))
    return Benchmark(source, source, Path("eval"))
