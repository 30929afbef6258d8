"""Measures the cost of streams and of `inf batch` against a plain call.

    python benchmarks/calls.py
    python benchmarks/calls.py --only streams --pairs 7 --json out.json

Parts, each a table (a median of `--pairs` runs, with the lowest and the highest):

    streams   the same prompts in one `generate`, and as concurrent `astream`s
    batch     one `generate` of `--lines` prompts, and `inf batch` on a file of as many; then
              `inf batch --workers` with 1 and with 2 engines on Ray; then two `inf batch` at once,
              each with one core and half of the lines; none with its start

The order within a pair alternates. Prompts are new in each run, so no cache has them. Answers are
greedy and have exactly the stated length.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from common import JsonFile, machine, save
from rich.console import Console
from rich.table import Table

from inf import InferenceEngine

PARTS = ("streams", "batch")
Figures = dict[str, list[float]]
_number = itertools.count()


def main(
    only: Annotated[str, typer.Option(help="The parts, by name.")] = ",".join(PARTS),
    pairs: Annotated[int, typer.Option(help="Timed runs of each.")] = 3,
    lines: Annotated[int, typer.Option(help="Lines of the file for `inf batch`.")] = 2000,
    json_file: JsonFile = None,
) -> None:
    parts, figures = only.split(","), {}
    with InferenceEngine() as engine:
        for part in parts:
            figures[part] = measure(part, engine, pairs, lines)
    if "batch" in parts:
        figures["workers"] = workers(lines)
    save(json_file, figures)
    show(figures)


def measure(part: str, engine: InferenceEngine, pairs: int, lines: int) -> Figures:
    measures: dict[str, Callable[[], Figures]] = {
        "streams": lambda: streams(engine, pairs),
        "batch": lambda: batch(engine, lines),
    }
    if part not in measures:
        raise typer.BadParameter(f"{part}: the parts are {', '.join(PARTS)}")
    return measures[part]()


def prompts(count: int) -> list[str]:
    """Return new prompts, which differ from their first words on."""
    run = next(_number)
    return [f"{run} and {row}: tell a story of the number {row * 7 + run}." for row in range(count)]


def generate(engine: InferenceEngine, asks: list[str], tokens: int) -> float:
    """Return the seconds of one call whose answers all have `tokens` tokens."""
    start = time.perf_counter()
    output: Any = engine.generate(
        asks, max_tokens=tokens, temperature=0, ignore_eos=True, progress=False
    )
    seconds = time.perf_counter() - start
    assert all(len(ids) == tokens for ids in output.token_ids)
    return seconds


def alternate(runs: dict[str, Callable[[], float]], pairs: int) -> Figures:
    """Return the results of each run, in alternating order, after one untimed round."""
    results: Figures = {name: [] for name in runs}
    for pair in range(pairs + 1):
        for name in runs if pair % 2 else reversed(list(runs)):
            result = runs[name]()
            if pair:
                results[name].append(result)
    return results


def streams(engine: InferenceEngine, pairs: int, tokens: int = 48) -> Figures:
    async def one(ask: str) -> int:
        stream = engine.astream(ask, max_tokens=tokens, temperature=0, ignore_eos=True)
        return sum([len(chunk.token_ids) async for chunk in stream])

    async def at_once(asks: list[str]) -> list[int]:
        return await asyncio.gather(*(one(ask) for ask in asks))

    def streamed(count: int) -> float:
        start = time.perf_counter()
        assert asyncio.run(at_once(prompts(count))) == [tokens] * count
        return count * tokens / (time.perf_counter() - start)

    def together(count: int) -> float:
        return count * tokens / generate(engine, prompts(count), tokens)

    figures: Figures = {}
    for count in (1, 8, 32):
        runs: dict[str, Callable[[], float]] = {
            f"{count} rows, one call, tok/s": partial(together, count),
            f"{count} streams at once, tok/s": partial(streamed, count),
        }
        figures |= alternate(runs, pairs)
    return figures


def batch(engine: InferenceEngine, lines: int, tokens: int = 16) -> Figures:
    """Measure the engine alone; `workers` does the same for `inf batch`."""
    generate(engine, prompts(64), tokens)
    seconds = generate(engine, prompts(lines), tokens)
    return {f"generate of {lines} prompts, tok/s": [lines * tokens / seconds]}


def workers(lines: int, tokens: int = 16) -> Figures:
    """Measure `inf batch`, each time on a quarter of the lines too, whose time is subtracted: so no
    start is counted, also where engines start after the command's own clock has begun (Ray)."""
    with tempfile.TemporaryDirectory() as folder:

        def start(
            count: int, cores: dict[str, str], flags: tuple[str, ...]
        ) -> subprocess.Popen[str]:
            """Start `inf batch` on a new file of so many lines."""
            name = next(_number)
            source, out = Path(folder, f"{name}.jsonl"), Path(folder, f"{name}.out.jsonl")
            source.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts(count)))
            answering = ["--max-tokens", tokens, "--min-tokens", tokens, "--temperature", 0]
            command = [Path(sys.executable).with_name("inf"), "batch", source, out, *answering]
            return subprocess.Popen(
                [*map(str, command), *flags],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "NO_COLOR": "1", **cores},
            )

        def seconds(count: int, processes: int, *flags: str) -> float:
            begin = time.perf_counter()
            cores = {"OMP_NUM_THREADS": "1"} if processes > 1 else {}
            running = [start(count // processes, cores, flags) for _ in range(processes)]
            for each in running:
                said = each.communicate(timeout=3600)[1]
                if each.returncode:
                    raise RuntimeError(f"inf batch failed:\n{said}")
            return time.perf_counter() - begin

        def rate(processes: int, *flags: str) -> list[float]:
            few = lines // 4
            took = seconds(lines, processes, *flags) - seconds(few, processes, *flags)
            return [(lines - few) * tokens / took]

        return {
            "inf batch, tok/s": rate(1),
            "inf batch --workers 1, tok/s": rate(1, "--workers", "1"),
            "inf batch --workers 2, tok/s": rate(1, "--workers", "2"),
            "two inf batch at once, a core each, tok/s": rate(2),
        }


def show(figures: dict[str, Any]) -> None:
    console = Console(width=120)
    for part in (*PARTS, "workers"):
        if part in figures:
            table = Table(part, "median", "lowest", "highest")
            for name, values in figures[part].items():
                middle, low, high = statistics.median(values), min(values), max(values)
                table.add_row(name, f"{middle:.2f}", f"{low:.2f}", f"{high:.2f}")
            console.print(table)
    console.print(str(machine()))


if __name__ == "__main__":
    typer.run(main)
