"""Measures tokens per second with a JSON schema, with a regex, and without a grammar.

    python benchmarks/grammar.py
    python benchmarks/grammar.py --pairs 9 --rows 1,16

One engine answers a number of rows, each with exactly `--tokens` tokens (`min_tokens` and
`max_tokens`), without a grammar, with a schema, and with a regex. Schema and regex do not end
earlier, and both allow many tokens at nearly every position, as free text does. The three runs
alternate, and their order changes from pair to pair; one untimed run of each comes first.

How to read the table. tok/s: the median over the pairs. Ratio: to the run without a grammar, the
median of the pairs' ratios, with their quartiles.
"""

from __future__ import annotations

import statistics
import time
from typing import Annotated, Any

import typer
from common import machine, quartiles, ratios
from rich.console import Console
from rich.table import Table

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 20},
        "size": {"type": "integer", "minimum": 3, "maximum": 4000},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "none": {},
    "json_schema": {"json_schema": {"type": "array", "items": ITEM, "minItems": 1_000}},
    "regex": {"regex": r"(?:[A-Za-z]{1,12}[ ,.]){1000,}"},
}


def main(
    rows: Annotated[str, typer.Option(help="Batch sizes.")] = "1,16",
    pairs: Annotated[int, typer.Option(help="Timed runs of each, a batch size.")] = 5,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 48,
) -> None:
    from inf import InferenceEngine

    with InferenceEngine() as engine:
        figures = {int(size): measure(engine, int(size), pairs, tokens) for size in rows.split(",")}
    show(figures)


def measure(engine: Any, rows: int, pairs: int, tokens: int) -> dict[str, list[float]]:
    """Return the tokens per second of each run."""
    speeds: dict[str, list[float]] = {name: [] for name in GRAMMARS}
    for pair in range(pairs + 1):
        for name in GRAMMARS if pair % 2 else reversed(list(GRAMMARS)):
            asks = [f"Tell a story of {pair}, {name} and {row}." for row in range(rows)]
            lengths = {"min_tokens": tokens, "max_tokens": tokens, "temperature": 1.0}
            start = time.perf_counter()
            output = engine.generate(asks, progress=False, **lengths, **GRAMMARS[name])
            seconds = time.perf_counter() - start
            if pair:  # the first is untimed
                speeds[name].append(sum(map(len, output.token_ids)) / seconds)
    return speeds


def show(figures: dict[int, dict[str, list[float]]]) -> None:
    table = Table("rows", "grammar", "tok/s", "ratio", title=str(machine()))
    for rows, speeds in figures.items():
        for name, values in speeds.items():
            against = "" if name == "none" else quartiles(ratios(values, speeds["none"]))
            table.add_row(str(rows), name, f"{statistics.median(values):.1f}", against)
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
