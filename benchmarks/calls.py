"""Measures the cost of streams, tools and `inf batch` against a plain call, and how calls scale.

    python benchmarks/calls.py
    python benchmarks/calls.py --only streams,rows --pairs 7 --json out.json

Parts, each a table (a median of `--pairs` runs, with the lowest and the highest):

    streams   the same prompts in one `generate`, and as concurrent `astream`s
    batch     one `generate` of `--lines` prompts, and `inf batch` on a file of as many, without its
              start; then `inf batch --workers` with 1 and with 2 engines on Ray
    tools     conversations with the tests' small model that calls a calculator: two turns, one call
    rows      one `generate` of 1 to 64 rows: tokens per second
    length    one row with an answer of 16 to 512 tokens: milliseconds a token
    memory    PSS of the caller and of the engine's process, after the start and after 64 rows

The order within a pair alternates. Prompts are new in each run, so no cache has them. Answers are
greedy and have exactly the stated length, except for the tool model's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from common import JsonFile, machine, save
from rich.console import Console
from rich.table import Table

from inf import InferenceEngine

ROOT = Path(__file__).parents[1]
PARTS = ("streams", "rows", "length", "memory", "batch", "tools")
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
        for part in [part for part in parts if part != "tools"]:
            figures[part] = measure(part, engine, pairs, lines)
    if "batch" in parts:
        figures["workers"] = workers(lines)
    if "tools" in parts:
        figures["tools"] = tools(pairs)
    save(json_file, figures)
    show(figures)


def measure(part: str, engine: InferenceEngine, pairs: int, lines: int) -> Figures:
    measures: dict[str, Callable[[], Figures]] = {
        "streams": lambda: streams(engine, pairs),
        "rows": lambda: rows(engine, pairs),
        "length": lambda: length(engine, pairs),
        "memory": lambda: memory(engine),
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
    output = engine.generate(
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

    figures = {}
    for count in (1, 8, 32):
        runs = {
            f"{count} rows, one call, tok/s": lambda c=count: (
                c * tokens / generate(engine, prompts(c), tokens)
            ),
            f"{count} streams at once, tok/s": lambda c=count: streamed(c),
        }
        figures |= alternate(runs, pairs)
    return figures


def rows(engine: InferenceEngine, pairs: int, tokens: int = 48) -> Figures:
    def run(count: int) -> float:
        return count * tokens / generate(engine, prompts(count), tokens)

    counts = {f"{count} rows, tok/s": lambda c=count: run(c) for count in (1, 2, 4, 8, 16, 32, 64)}
    return alternate(counts, pairs)


def length(engine: InferenceEngine, pairs: int) -> Figures:
    lengths = {
        f"{tokens} tokens, ms a token": lambda t=tokens: generate(engine, prompts(1), t) * 1e3 / t
        for tokens in (16, 64, 256, 512)
    }
    return alternate(lengths, pairs)


def memory(engine: InferenceEngine) -> Figures:
    """Return GB of this process, and of its children, which belong to the engine."""

    def held() -> tuple[float, float]:
        own = psutil.Process()
        children = own.children(recursive=True)
        return tuple(  # type: ignore[return-value]
            sum(each.memory_full_info().pss for each in group) / 1e9 for group in ([own], children)
        )

    before = held()
    generate(engine, prompts(64), 64)
    figures: Figures = {}
    for when, (caller, child) in {"before": before, "after": held()}.items():
        figures[f"caller, {when} 64 rows, GB"] = [caller]
        figures[f"engine, {when} 64 rows, GB"] = [child]
    return figures


def batch(engine: InferenceEngine, lines: int, tokens: int = 16) -> Figures:
    """Measure the engine alone; `workers` does the same for `inf batch`."""
    generate(engine, prompts(64), tokens)
    seconds = generate(engine, prompts(lines), tokens)
    return {f"generate of {lines} prompts, tok/s": [lines * tokens / seconds]}


def workers(lines: int, tokens: int = 16) -> Figures:
    figures = {}
    for flags in ([], ["--workers", "1"], ["--workers", "2"]):
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
            source.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts(lines)))
            answering = ["--max-tokens", str(tokens), "--temperature", "0", "--min-tokens"]
            command = [Path(sys.executable).with_name("inf"), "batch", source, out, *answering]
            done = subprocess.run(
                [*map(str, command), str(tokens), *flags],
                stderr=subprocess.PIPE,
                text=True,
                timeout=3600,
                env={**os.environ, "NO_COLOR": "1"},
            )
            said = re.search(r"^\d+ lines, \d+ tokens, (\d+) tok/s", done.stderr, re.MULTILINE)
            if said is None:  # lines of progress begin with another word
                raise RuntimeError(f"inf batch failed:\n{done.stderr}")
            figures[" ".join(["inf batch", *flags]) + ", tok/s"] = [float(said[1])]
    return figures


def tools(pairs: int) -> Figures:
    sys.path.insert(0, str(ROOT / "tests"))
    from tests.support.tool_calling import TOOL_MODEL, question

    def ask(count: int) -> list[str]:
        run = next(_number)
        return [question(f"{2 + run % 90} * {2 + row}") for row in range(count)]

    def calling(count: int) -> float:
        start = time.perf_counter()
        output = engine.generate(ask(count), temperature=0, progress=False)
        seconds = time.perf_counter() - start
        called = sum(bool(row["tool_calls"]) for row in output.metadata)
        assert called >= 0.9 * count, f"only {called} of {count} conversations called the tool"
        return count / seconds

    turns = {"enable": True, "tool_config_path": str(ROOT / "tools.yaml")}
    rollout = {"dtype": "float32", "prompt_length": 1024, "multi_turn": turns}
    with InferenceEngine(model_path=str(TOOL_MODEL), rollout=rollout) as engine:
        counts = {
            f"{count} conversations, a second": lambda c=count: calling(c) for count in (1, 8, 64)
        }
        return alternate(counts, pairs)


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
