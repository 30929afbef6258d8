"""How long `inf show FOLDER` takes for a run of 200 steps with 1,024 rows, and its memory.

python benchmarks/run_page.py [STEPS] [ROWS]
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import inf
from _inf.apps.runs.page import run_page

WORDS = "so we add the number of apples and multiply by price which gives the total cost".split()
SAMPLES = 8


def write(folder: Path, steps: int, rows: int) -> None:
    draw = random.Random(1)
    asked = [" ".join(draw.choices(WORDS, k=60)) for _ in range(rows // SAMPLES)]
    for step in range(1, steps + 1):
        lines = []
        for prompt in asked:
            for _ in range(SAMPLES):
                output = " ".join(draw.choices(WORDS, k=draw.randint(100, 300) + step))
                score = float(draw.random() < step / steps)
                row = {"input": prompt, "output": output, "gts": "7", "score": score, "step": step}
                lines.append(json.dumps(row, ensure_ascii=False))
        (folder / f"{step}.jsonl").write_text("\n".join(lines) + "\n")


def main(steps: int = 200, rows: int = 1024) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, steps, rows)
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
    main(*map(int, sys.argv[1:]))
