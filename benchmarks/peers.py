"""Compares `engine.generate` with four peers on a CPU, in one run, in tokens per second.

    bash tests/vllm/install.sh build/vllm
    bash benchmarks/install_llama_cpp.sh build/llama_cpp
    python benchmarks/peers.py
    python benchmarks/peers.py --loads 1 --pairs 5 --json out.json

All run the embedded model in float32, with prompts and answers of 64 tokens, at temperature 1
without a filter:

    ours, raw, Transformers   as in `throughput.py`, whose docstring explains the figures
    vllm        vLLM 0.32.0's `LLM.generate` with log probs, compiled
    llama_cpp   llama.cpp's `llama-batched-bench` on the same weights in float32; it reads and
                generates as many tokens, but draws and returns none

vLLM and llama.cpp have environments of their own, made by the two scripts above; a missing one is
skipped with a message. tok/s is the answers' tokens over the time of the whole call, reading the
prompts included; "llama_cpp, decoding" leaves reading the prompts out, as llama.cpp itself reports
it. A ratio is the median of the pairs' ratios, with their quartiles in brackets.

Memory (PSS): of the process that calls, and of its children together, which for ours, raw and vLLM
are the engine; when it has started, and at most during the untimed runs. llama.cpp starts anew for
each run.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from common import JsonFile, footer, machine, quartiles, ratios
from rich.console import Console
from rich.table import Table
from throughput import Race, measure_all

from _inf.models.resolve import embedded_gguf

BUILD = Path(__file__).parents[1] / "build"
VLLM, LLAMA_CPP = "vllm", "llama_cpp"
WHOSE = ("caller", "engine")
INSTALL = {VLLM: "tests/vllm/install.sh", LLAMA_CPP: "benchmarks/install_llama_cpp.sh"}


def main(
    loads: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8,32",
    pairs: Annotated[int, typer.Option(help="Timed runs of each, a load.")] = 5,
    tokens: Annotated[int, typer.Option(help="Answer length.")] = 64,
    json_file: JsonFile = None,
) -> None:
    report: dict[str, Any] = {"machine": machine(), "command": sys.argv, "tokens": tokens}
    names = ["ours", "raw", "transformers", *installed(list(INSTALL))]
    with tempfile.TemporaryDirectory() as scratch, Peers(names, Path(scratch)) as race:
        measure_all(race, report, loads, pairs, json_file)
    show(report)
    if race.failures:
        sys.exit("\n".join(race.failures.values()))


def installed(peers: list[str]) -> list[str]:
    """Return those that are installed; print how to install the others."""
    there = [name for name in peers if (BUILD / name / ".installed").exists()]
    for name in set(peers) - set(there):
        install = f"bash {INSTALL[name]} {BUILD / name}"
        Console(stderr=True).print(f"{name} is left out: not installed; {install}", soft_wrap=True)
    return there


class Peers(Race):
    known = ("ours", "raw", "transformers", VLLM, LLAMA_CPP)

    def __init__(self, names: list[str], scratch: Path) -> None:
        super().__init__(names, None, [])
        self._scratch = scratch

    def settings(self, name: str) -> dict[str, Any]:
        if name == VLLM:
            engine = self.running["ours"].ready["engine"]
            python = str(BUILD / VLLM / "bin" / "python")
            return {"python": python, "model": engine["model"], "dtype": engine["dtype"]}
        if name == LLAMA_CPP:
            programs = BUILD / LLAMA_CPP / "build" / "bin"
            paths = {"programs": programs, "gguf": embedded_gguf(), "scratch": self._scratch}
            return {key: str(path) for key, path in paths.items()}
        return super().settings(name)


def show(report: dict[str, Any]) -> None:
    about = report["machine"]
    table = Table("", "rows", "tok/s", "ours/its", title=f"tokens per second, {about['cpu']}")
    for load, rates in report["loads"].items():
        for name, figures in rates.items():
            against = "" if name == "ours" else quartiles(ratios(rates["ours"], figures))
            table.add_row(name, load, f"{statistics.median(figures):.1f}", against)
        table.add_section()
    console = Console(width=120)
    console.print(table)
    memory = Table("GB", *(f"{when}, {of}" for when in ("at rest", "at most") for of in WHOSE))
    for name, peak in report["peak_bytes"].items():
        held = [*report["rest_bytes"][name], *peak]
        memory.add_row(name, *(f"{each / 1e9:.2f}" for each in held))
    console.print(memory)
    console.print(footer(about))


if __name__ == "__main__":
    typer.run(main)
