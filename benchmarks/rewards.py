"""Measures how many calls of a slow judge run at once. It needs no engine: the rows are made up.

    python benchmarks/rewards.py
    python benchmarks/rewards.py --rows 1000 --seconds 0.2 --workers 2,8 --json out.json

The judge sleeps, once with `time.sleep` and once with `asyncio.sleep`. The table has, for each
number of reward workers, the wall time until all stored answers are scored, including the start of
the workers and the file, and its ratio to the sum of the sleeps.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from common import JsonFile, machine, save
from rich.console import Console
from rich.table import Table

from _inf.apps.batch.output_file import OutputFile
from _inf.apps.eval.reward_pool import RewardPool
from _inf.apps.eval.scoring import Judges, answer_and_score
from _inf.apps.tally import Tally

JUDGES = """
import asyncio, time

def sync(solution_str, ground_truth, **rest):
    time.sleep({seconds})
    return float(ground_truth in solution_str)

async def async_(solution_str, ground_truth, **rest):
    await asyncio.sleep({seconds})
    return float(ground_truth in solution_str)
"""


def main(
    rows: Annotated[int, typer.Option(help="Stored answers.")] = 1000,
    seconds: Annotated[float, typer.Option(help="The judge's sleep.")] = 0.2,
    workers: Annotated[str, typer.Option(help="Numbers of reward workers.")] = "2,8",
    json_file: JsonFile = None,
) -> None:
    table = Table("judge", "reward workers", "wall time", "of the sum of sleeps")
    figures: dict[str, Any] = {"machine": machine(), "command": sys.argv, "seconds": []}
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "judges.py").write_text(JUDGES.format(seconds=seconds))
        for judge in ("sync", "async_"):
            for count in map(int, workers.split(",")):
                took = measure(f"{file}:{judge}", count, Path(folder) / f"{judge}{count}", rows)
                figures["seconds"].append((judge, count, took))
                ratio = took / (rows * seconds)
                table.add_row(judge.strip("_"), str(count), f"{took:.1f} s", f"{ratio:.4f}")
    console = Console()
    console.print(table)
    console.print(figures["machine"])
    save(json_file, figures)


def measure(reward: str, workers: int, stem: Path, rows: int) -> float:
    """Return the seconds until all rows are scored, and check that each got its own reward."""
    with OutputFile(stem.with_suffix(".jsonl")) as file:
        file.begin({}, restart=False)
        for line in range(1, rows + 1):
            file.append(line, {"solution_str": f"answer {line}", "number": line, "reward": None})
        start = time.perf_counter()
        asyncio.run(score(file, RewardPool(reward, workers=workers), rows))
        took = time.perf_counter() - start
        wrong = [row["line"] for row in file.rows() if row["reward"] != row["number"] % 2]
    assert not wrong, wrong
    return took


async def score(file: OutputFile, pool: RewardPool, rows: int) -> None:
    async with pool:
        tally, lines = Tally(rows, 0, rows), list(range(1, rows + 1))
        await answer_and_score(file, Judges(pool), lines, arguments, None, tally, print)


def arguments(row: dict[str, Any]) -> dict[str, Any]:
    """The arguments of odd rows, with the right answer as the ground truth."""
    truth = f"answer {row['number']}" if row["number"] % 2 else "another"
    about = {"data_source": "judge", "extra_info": {}}
    return {**about, "solution_str": row["solution_str"], "ground_truth": truth}


if __name__ == "__main__":
    typer.run(main)
