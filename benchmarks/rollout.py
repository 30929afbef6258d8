"""Compares a trainer's rollout, 16 prompts with 8 answers each in one call, in tokens per second.

    bash tests/vllm/install.sh build/vllm
    python benchmarks/rollout.py
    python benchmarks/rollout.py --load 8x4 --pairs 1 --json out.json

Prompts of 400 tokens and answers of 64, at temperature 1 without a filter, of the embedded model:

    ours          `engine.generate`, which computes each prompt once
    hf            the same with `rollout.name: hf`
    raw           `sglang.Engine.generate` with our server arguments and the 128 rows, as verl's
                  `SGLangRollout` calls it
    transformers  `model.generate` on the 128 rows as one batch
    vllm          `LLM.generate`, if it is installed, with prefix caching, its default

The rest is as in `throughput.py` and `peers.py`, whose docstrings explain the figures.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from common import JsonFile, machine
from peers import VLLM, Peers, installed, show
from throughput import measure_all


def main(
    load: Annotated[str, typer.Option(help="Prompts x answers of each.")] = "16x8",
    pairs: Annotated[int, typer.Option(help="Timed runs of each.")] = 3,
    tokens: Annotated[int, typer.Option(help="Answer length.")] = 64,
    without: Annotated[str, typer.Option(help="Names to leave out.")] = "",
    json_file: JsonFile = None,
) -> None:
    report: dict[str, Any] = {"machine": machine(), "command": sys.argv, "tokens": tokens}
    there = {"ours", "hf", "raw", "transformers", *installed([VLLM])} - set(without.split(","))
    with tempfile.TemporaryDirectory() as scratch, Rollout(sorted(there), Path(scratch)) as race:
        measure_all(race, report, load, pairs, json_file)
    show(report)
    if race.failures:
        sys.exit("\n".join(race.failures.values()))


class Rollout(Peers):
    known = ("ours", "hf", "raw", "transformers", VLLM)


if __name__ == "__main__":
    typer.run(main)
