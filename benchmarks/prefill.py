"""Measures how long reading a prompt takes on a CPU, with our attention and with SGLang's.

    python benchmarks/prefill.py
    python benchmarks/prefill.py --pairs 9

Two engines run in one process, one working at a time: `ours` with this library's CPU attention,
`torch_native` with SGLang's. Each load is a prompt of random token ids, new in each pair, with or
without a cached prefix before it; one token is generated. The order alternates.

How to read the table. Seconds: of the call, the median over the pairs, with the lowest and the
highest. Ratio: `torch_native` to `ours`, the median of the pairs' ratios.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from typing import Annotated, Any

import typer
from common import footer, machine, ratios, spread
from rich.console import Console
from rich.table import Table

OURS, NATIVE = "ours", "torch_native"
LOADS = ((0, 60), (0, 500), (0, 2000), (500, 50), (1950, 50), (1500, 500))  # cached, new
VOCABULARY = 40_000


def main(
    pairs: Annotated[int, typer.Option(help="Prompts of each load, each read by both.")] = 7,
) -> None:
    from inf import InferenceEngine

    native = {"engine_kwargs": {"sglang": {"attention_backend": "torch_native"}}}
    with contextlib.ExitStack() as stack:
        engines = {
            OURS: stack.enter_context(InferenceEngine()),
            NATIVE: stack.enter_context(InferenceEngine(rollout=native)),
        }
        measure(engines, (0, 60), 1)  # warm
        figures = {load: measure(engines, load, pairs) for load in LOADS}
    show(figures)


def measure(engines: dict[str, Any], load: tuple[int, int], pairs: int) -> dict[str, list[float]]:
    """Return the seconds of each call."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    cached, new = load
    for pair in range(pairs):
        generator = random.Random(f"{load} {pair}")
        ids = [generator.randrange(3, VOCABULARY) for _ in range(cached + new)]
        for name in engines if pair % 2 else reversed(list(engines)):
            if cached:
                read(engines[name], ids[:cached])
            seconds[name].append(read(engines[name], ids))
    return seconds


def read(engine: Any, ids: list[int]) -> float:
    start = time.perf_counter()
    engine.generate({"prompt_token_ids": ids}, temperature=0, max_tokens=1)
    return time.perf_counter() - start


def show(figures: dict[tuple[int, int], dict[str, list[float]]]) -> None:
    about, console = machine(), Console(width=120)
    table = Table(title=f"seconds to read a prompt, {about['cpu']}")
    for heading in ("cached", "new", OURS, NATIVE, "ratio"):
        table.add_column(heading, justify="right")
    for (cached, new), seconds in figures.items():
        table.add_row(
            str(cached),
            str(new),
            *map(spread, (seconds[OURS], seconds[NATIVE])),
            f"{statistics.median(ratios(seconds[NATIVE], seconds[OURS])):.2f}",
        )
    console.print(table)
    console.print(footer(about))


if __name__ == "__main__":
    typer.run(main)
