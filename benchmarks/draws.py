"""Measures what a CPU computes to filter and draw the tokens of a step: in C and by operators.

    python benchmarks/draws.py
    python benchmarks/draws.py --rows 32 --scale 1.5

The logits are random, normally distributed with `--scale`: at 4, `top_p=0.9` keeps a few hundred
tokens, at 1.5 some twenty thousand. No engine is started.

How to read the table. Milliseconds of one core, on one thread, the median: other work on the
machine changes them little, and a step with two threads takes half of them.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from common import machine
from rich.console import Console
from rich.table import Table

from _inf.backends import draws
from _inf.backends.verl.child.compiled_draws import CompiledDraws
from _inf.backends.verl.compiled_libraries import kernel_library

VOCABULARY, RUNS = 49_152, 25
FILTERS = {"top_p": (2**30, 0.9, 0.0), "top_k": (50, 1.0, 0.0), "min_p": (2**30, 1.0, 0.05)}


def main(
    rows: Annotated[int, typer.Option(help="Rows of a step.")] = 16,
    scale: Annotated[float, typer.Option(help="Standard deviation of the logits.")] = 4.0,
) -> None:
    torch.set_num_threads(1)
    library = kernel_library()
    if library is None:
        raise typer.Exit(1)
    compiled = CompiledDraws(library)
    probs = (torch.randn(rows, VOCABULARY) * scale).softmax(-1)
    seeds, places = range(rows), [100] * rows
    table = Table("", "kept", "operators", "in C", "ratio", title=f"{rows} rows, {machine()}")

    def show(name: str, kept: str, run: Callable[[Any], object]) -> None:
        both = [milliseconds(functools.partial(run, module)) for module in (draws, compiled)]
        table.add_row(name, kept, *(f"{each:.2f}" for each in both), f"{both[1] / both[0]:.2f}")

    def filtered(columns: list[torch.Tensor], module: Any) -> torch.Tensor:
        kept: torch.Tensor = module.filtered(probs, *columns)
        return kept

    for name, values in FILTERS.items():
        columns = [torch.tensor([[value]] * rows) for value in values]
        kept = (draws.filtered(probs, *columns) > 0).sum(-1).float().median()
        show(name, f"{kept:.0f}", functools.partial(filtered, columns))
    show("seed", "", lambda module: module.draw_by_seed(probs, seeds, places))
    Console(width=100).print(table)


def milliseconds(run: Callable[[], object]) -> float:
    """The median of core time, after an untimed run."""
    times = []
    for _ in range(RUNS + 1):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times[1:])


if __name__ == "__main__":
    typer.run(main)
