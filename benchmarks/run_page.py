"""How long `inf show FOLDER` takes for a run of 200 steps with 1,024 rows, and its memory.

python benchmarks/run_page.py [STEPS] [ROWS] [verl | TRL | slime]
"""

from __future__ import annotations

import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import inf
from _inf.apps.runs.page import run_page

WORDS = "so we add the number of apples and multiply by price which gives the total cost".split()
SAMPLES = 8


Row: TypeAlias = dict[str, Any]


def write(folder: Path, steps: int, rows: int, trainer: str) -> None:
    draw = random.Random(1)
    asked = [" ".join(draw.choices(WORDS, k=60)) for _ in range(rows // SAMPLES)]
    for step in range(1, steps + 1):
        made = []
        for prompt in asked:
            for _ in range(SAMPLES):
                output = " ".join(draw.choices(WORDS, k=draw.randint(100, 300) + step))
                score = float(draw.random() < step / steps)
                made.append({"input": prompt, "output": output, "score": score, "step": step})
        WRITERS[trainer](folder, step, made)


def write_verl(folder: Path, step: int, rows: list[Row]) -> None:
    lines = [json.dumps(row | {"gts": "7"}, ensure_ascii=False) for row in rows]
    (folder / f"{step}.jsonl").write_text("\n".join(lines) + "\n")


def write_trl(folder: Path, step: int, rows: list[Row]) -> None:
    import pandas

    table = pandas.DataFrame(rows).rename(columns={"input": "prompt", "output": "completion"})
    table = table[["step", "prompt", "completion", "score"]].assign(length=1.0)  # two rewards
    groups = table.groupby("prompt")["score"]
    table["advantage"] = table["score"] - groups.transform("mean")
    table.to_parquet(folder / f"completions_{step:05d}.parquet")


def write_slime(folder: Path, step: int, rows: list[Row]) -> None:
    import torch

    samples = []
    for row in rows:
        words = row["output"].split()
        ids = [50_000 + place % 100_000 for place in range(60 + len(words))]
        sample = {"prompt": row["input"], "response": row["output"], "reward": row["score"]}
        sample |= {"tokens": ids, "response_length": len(words), "status": "completed"}
        samples.append(sample | {"rollout_log_probs": [-1 / (2 + each) for each in ids[60:]]})
    torch.save({"rollout_id": step, "samples": samples}, folder / f"{step}.pt")


WRITERS = {"verl": write_verl, "TRL": write_trl, "slime": write_slime}


def main(steps: str = "200", rows: str = "1024", trainer: str = "verl") -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Another process, so that its memory does not count.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
            other.submit(write, folder, int(steps), int(rows), trainer).result()
        size = sum(file.stat().st_size for file in folder.iterdir())
        begin = time.perf_counter()
        run = inf.load_run(folder)
        read = time.perf_counter()
        page = run_page(run)
        written = time.perf_counter()
        run_page(run, served=0)
        served = time.perf_counter()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{len(run)} rows of {len(run.steps)} steps, {size / 2**20:.0f} MiB")
        print(f"read: {read - begin:.1f} s")
        print(f"a page of {len(page) / 2**20:.0f} MiB: {written - read:.1f} s more")
        print(f"the served page: {served - written:.1f} s more")
        print(f"memory: {memory:.0f} MiB at most")


if __name__ == "__main__":
    main(*sys.argv[1:])
