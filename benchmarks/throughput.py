"""Compares `engine.generate` with the raw SGLang engine and Transformers' `generate` in tok/s.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --loads 1 --pairs 3 --json out.json
    python benchmarks/throughput.py --loads 256 --contestants ours,raw,default

Engines, each in its own process, all loaded at once, one working at a time:

    ours            `InferenceEngine.generate`
    raw             `sglang.Engine.generate` with the very `ServerArgs` object of ours (ports aside)
    Transformers    `model.generate` on the rows as one batch, left-padded, in the engine's dtype
    default         `sglang.Engine.generate` with the same model, dtype, device and memory fraction,
                    and SGLang's own choice of everything else; only if `--contestants` names it
    other_schedule  ours with SGLang's other schedule: overlapped on a CPU, serial on a GPU; only if
                    `--contestants` names it

All get the same token ids and the same sampling (temperature 1, no filter, EOS ignored, so that
every row has the requested length); both engines also return log probs. A load is a number of rows
of equal length (prompts of 64 tokens, answers of `--tokens`); or `16x8`: 16 prompts of 400 tokens,
8 answers of each (`rollout.py`); or `mixed`: 64 word problems of very different lengths, with
answers of a quarter of `--tokens` to four times `--tokens` (16 to 256). Transformers generates all
rows to the longest answer; only the requested tokens count. Prompts are new in each pair, so no
engine has them in a cache. The engines take turns within a pair, in an order that alternates from
pair to pair, after one untimed run each. If an engine dies, the others continue, the end of its log
is in the JSON, and the exit code is 1; only ours cannot be missing, because the others get its
arguments and its prompts.

How to read the table. tok/s: the median over the pairs. ours/raw: the median of the pairs' ratios,
then their quartiles; a gap smaller than that spread is noise. Bound: rows that
run at once x memory bandwidth / bytes of parameters, which is what reading every weight once per
step would allow; a big batch is bound by arithmetic first. Bandwidth: a copy measured by
Transformers' process, bytes read plus bytes written. Memory: the most that a process tree held
during its untimed runs, with all engines loaded (PSS: shared pages are divided among the processes
that share them; a GPU's memory is not included); nothing is sampled in timed runs. A run of `mixed`
takes minutes, so its untimed runs have 8 tokens a row, and Transformers, the slowest, answers only
the first 3 pairs, which its ratio is over.

The raw engine needs three things to run on a CPU at all, and gets them: the environment that
`_inf.backends.verl.environment.prepare` sets (including stand-ins for CUDA's libraries), our server
arguments (`attention_backend: torch_native` and others, see
`_inf/backends/verl/server_arguments.py`), and a `__main__` guard. It runs without our fixes of the
scheduler, and with the detokenizer process that SGLang starts, which idles. Our engine's child runs
with `GOMP_SPINCOUNT=10000` (idle OpenMP threads soon sleep); here all engines do, unless the
caller's environment says otherwise. Only ours uses large pages (`THP_MEM_ALLOC_ENABLE`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import psutil
import typer
from common import Assignments, ConfigFile, JsonFile, footer, machine, quartiles, ratios, save
from rich.console import Console
from rich.table import Table

from _inf.runtime.interpreter import TORCH_VARIABLES

PROMPT_TOKENS, GROUP_PROMPT_TOKENS = 64, 400
GROUPS_WARM = "2x2"  # the untimed run of groups
MIXED, MIXED_ROWS = "mixed", 64
TRANSFORMERS_MIXED_PAIRS, MIXED_WARM = 3, 8
ANSWER_SECONDS = 3600.0
WEIGH_SECONDS = 0.5
SERIAL = "rollout.engine_kwargs.sglang.disable_overlap_schedule"
CONTESTANTS = ("ours", "raw", "default", "other_schedule", "transformers")


def main(
    loads: Annotated[str, typer.Option(help="Batch sizes, and mixed.")] = "1,8,32,mixed",
    pairs: Annotated[int, typer.Option(help="Timed runs of each contestant, a load.")] = 7,
    contestants: Annotated[str, typer.Option(help="Which.")] = "ours,raw,transformers",
    tokens: Annotated[int, typer.Option(help="Answer length of the equal loads.")] = 64,
    config: ConfigFile = None,
    assignments: Assignments = None,
    json_file: JsonFile = None,
) -> None:
    report: dict[str, Any] = {"machine": machine(), "command": sys.argv, "tokens": tokens}
    with Race(contestants.split(","), config, assignments or []) as race:
        report |= {"engine": race.running["ours"].ready["engine"], "failures": race.failures}
        report["bandwidth"] = race.ask("transformers", bandwidth=True)
        measure_all(race, report, loads, pairs, json_file)
    show(report)
    if race.failures:
        sys.exit("\n".join(race.failures.values()))


# The conductor


class NoAnswer(SystemExit):
    """A contestant died, or did not do the work that it was asked for."""


class Contestant:
    """A child process that answers JSON lines. `rest` and `peak` are the bytes that it held when it
    was ready, and the most in a watched answer: itself, and its children."""

    program = str(Path(__file__).with_name("contestants.py"))

    def __init__(self, name: str, python: str = sys.executable, **settings: Any) -> None:
        self.name, self.rest, self.peak = name, (0, 0), (0, 0)
        self.log: IO[bytes] = tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log")
        self.process = subprocess.Popen(
            [python, self.program, "--contestant", name, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={"GOMP_SPINCOUNT": TORCH_VARIABLES["GOMP_SPINCOUNT"], **os.environ},
        )

    @functools.cached_property
    def ready(self) -> Any:
        """What it says when it has started."""
        answer = self._answer(watched=False)
        self.rest = self._held()
        return answer

    def ask(self, watched: bool = False, **job: Any) -> Any:
        assert self.process.stdin is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        return self._answer(watched)

    def _answer(self, watched: bool) -> Any:
        assert self.process.stdout is not None
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            wait = WEIGH_SECONDS if watched else ANSWER_SECONDS
            if select.select([self.process.stdout], [], [], wait)[0]:
                if line := self.process.stdout.readline():
                    return json.loads(line)
                break
            self.peak = max(self.peak, self._held(), key=sum)
        self.log.seek(0)
        tail = self.log.read().decode(errors="replace")[-3000:]
        raise NoAnswer(f"{self.name} gave no answer; the end of what it said:\n{tail}")

    def _held(self) -> tuple[int, int]:
        own, *children = [*map(held, self.tree())] or [0]
        return own, sum(children)

    def tree(self) -> list[psutil.Process]:
        try:
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        tree = self.tree()
        assert self.process.stdin is not None
        self.process.stdin.close()
        _, alive = psutil.wait_procs(tree, timeout=30)
        for process in alive:
            process.kill()
        self.process.wait()


def held(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


class Race:
    """The contestants that run, and in `failures` why the others do not."""

    known: tuple[str, ...] = CONTESTANTS

    def __init__(self, names: list[str], config: str | None, assignments: list[str]) -> None:
        if "ours" not in names or not set(names) <= set(self.known):
            sys.exit(f"--contestants: ours, and any of {', '.join(self.known[1:])}; got {names}")
        self.running: dict[str, Contestant] = {}
        self.failures: dict[str, str] = {}
        self._ours = {"config": config, "assignments": assignments}
        self._names = [name for name in self.known if name in names]

    def __enter__(self) -> Race:
        try:
            for name in self._names:  # the others start together, when ours is ready
                Console(stderr=True).print(f"starting {name} ...")
                with self._failing(name):
                    self.running[name] = Contestant(name, **self.settings(name))
            for name in list(self.running):
                with self._failing(name):
                    _ = self.running[name].ready
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for contestant in self.running.values():
            contestant.close()

    def ask(self, name: str, **job: Any) -> Any:
        """Return a contestant's answer; None if it does not run, or if it fails now."""
        if name in self.running:
            with self._failing(name):
                return self.running[name].ask(**job)
        return None

    def fail(self, name: str, why: str) -> None:
        """Continue without a contestant; without ours there is nothing to compare."""
        if name == "ours":
            raise NoAnswer(why)
        self.failures[name] = why
        Console(stderr=True).print(f"{name} failed", highlight=False)
        if name in self.running:
            self.running.pop(name).close()

    @contextlib.contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except NoAnswer as failure:
            self.fail(name, str(failure))

    def settings(self, name: str) -> dict[str, Any]:
        """Return the arguments of the contestant's function in `contestants.py`."""
        if name == "ours":
            return self._ours
        ready = self.running["ours"].ready
        if name == "other_schedule":
            serial = ready["engine"]["server_args"][SERIAL.rpartition(".")[2]] == "True"
            other = f"{SERIAL}={str(not serial).lower()}"
            assignments: Any = self._ours["assignments"]
            return {**self._ours, "assignments": [*assignments, other]}
        if name == "hf":
            return self._ours
        if name == "transformers":
            return {key: ready["engine"][key] for key in ("model", "dtype", "device")}
        return {"server_args": ready["server_args"][name]}


def measure_all(
    race: Race, report: dict[str, Any], loads: str, pairs: int, json_file: Path | None
) -> None:
    """Add the rates of each load and the memory to the report, and save it after each load."""
    report["loads"] = {}
    for load in loads.split(","):
        report["loads"][load] = measure(race, load, pairs, report["tokens"])
        report["peak_bytes"] = {name: each.peak for name, each in race.running.items()}
        report["rest_bytes"] = {name: each.rest for name, each in race.running.items()}
        save(json_file, report)


def measure(
    race: Race, load: str, pairs: int, tokens: int, seconds: float = math.inf
) -> dict[str, list[float]]:
    """Return each contestant's tokens per second, pair by pair, and without prompts if it says.
    No pair begins after so many seconds, but for the first."""
    rates: dict[str, list[float]] = {name: [] for name in race.running}
    end = time.monotonic() + seconds
    for pair in range(-1, pairs):  # -1: the untimed run
        if pair > 0 and time.monotonic() > end:
            break
        sent = GROUPS_WARM if has_groups(load) and pair < 0 else load
        texts, limits = rows(sent, tokens, seed=f"{load} {pair}")
        prompts = race.ask("ours", texts=texts, cut=prompt_tokens(load))
        for name in list(race.running) if pair % 2 else list(reversed(race.running)):
            if name == "transformers" and load == MIXED and pair >= TRANSFORMERS_MIXED_PAIRS:
                continue
            asked = [MIXED_WARM] * len(limits) if load == MIXED and pair < 0 else limits
            answer = race.ask(name, watched=pair < 0, prompts=prompts, limits=asked)
            if answer and answer["tokens"] != asked:
                race.fail(name, f"{name}: rows of {answer['tokens']} tokens in place of {asked}")
            elif answer and pair >= 0:
                rates[name].append(sum(limits) / answer["seconds"])
                if "decoding" in answer:
                    decoding = rates.setdefault(f"{name}, decoding", [])
                    decoding.append(sum(limits) / answer["decoding"])
        done = "warm" if pair < 0 else f"pair {pair + 1} of {pairs}"
        last = ", ".join(f"{name} {figures[-1]:.1f}" for name, figures in rates.items() if figures)
        Console(stderr=True).print(f"{load}: {done}  {last}", highlight=False)
    return {name: figures for name, figures in rates.items() if figures}


# The loads

NAMES = "Ada Ben Carla Dmitri Elif Farid Greta Hugo Ines Jun Kofi Lena Marta Noor Omar Pia".split()
THINGS = "apples books candles drums eggs flags gloves hats jars kites lamps maps nails".split()
STEPS = (
    "{a} buys {n} {t} on Monday and gives {m} of them to {b}.",
    "The next day {b} finds {n} more {t} and sells half of what is left for {m} dollars.",
    "{b} packs {n} boxes with {m} {t} each, and {a} carries a third of them to the market.",
    "It takes {a} {m} minutes to count {n} {t}, and {b} is twice as fast.",
    "Each of the {n} {t} costs {m} dollars, but {a} gets one in ten for nothing.",
)


def rows(load: str, tokens: int, seed: str) -> tuple[list[str], list[int]]:
    """Make word problems and the length of each answer; the same for the same seed."""
    rng = random.Random(seed)
    if has_groups(load):
        prompts, samples = map(int, load.split("x"))
        texts = [problem(rng, 24) for _ in range(prompts)]
        return [text for text in texts for _ in range(samples)], [tokens] * prompts * samples
    if load != MIXED:
        return [problem(rng, 8) for _ in range(int(load))], [tokens] * int(load)
    texts = [problem(rng, rng.randint(1, 5)) for _ in range(MIXED_ROWS)]
    return texts, [rng.randint(max(1, tokens // 4), tokens * 4) for _ in texts]


def has_groups(load: str) -> bool:
    return load != MIXED and "x" in load


def prompt_tokens(load: str) -> int | None:
    """How many tokens of each prompt are sent; None: all."""
    if load == MIXED:
        return None
    return GROUP_PROMPT_TOKENS if has_groups(load) else PROMPT_TOKENS


def problem(rng: random.Random, sentences: int) -> str:
    def sentence() -> str:
        a, b = rng.sample(NAMES, 2)
        n, m = rng.randint(10, 999), rng.randint(2, 99)
        return rng.choice(STEPS).format(a=a, b=b, n=n, m=m, t=rng.choice(THINGS))

    return " ".join(sentence() for _ in range(sentences)) + " How many are left?"


# The table


def show(report: dict[str, Any]) -> None:
    bandwidth, about, console = report["bandwidth"], report["machine"], Console(width=120)
    others = [name for name in CONTESTANTS[1:] if name in report["peak_bytes"]]
    table = Table(title=f"tokens per second, {report['engine']['dtype']}, {about['cpu']}")
    headings = ["load", "ours", *(each for name in others for each in (name, f"ours/{name}"))]
    for heading in (*headings, "bound"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for load, rates in report["loads"].items():
        count = len(rows(load, 1, "")[1])
        at_once = min(count, report["engine"]["max_running_requests"] or count)
        cells = [load, f"{statistics.median(rates['ours']):.1f}"]
        for name in others:
            theirs = rates.get(name)
            median = f"{statistics.median(theirs):.1f}" if theirs else "-"
            cells += [median, quartiles(ratios(rates["ours"], theirs)) if theirs else "-"]
        steps = bandwidth and bandwidth["bytes_a_second"] / bandwidth["bytes_a_step"]
        table.add_row(*cells, f"{at_once * steps:.0f}" if bandwidth else "-")
    console.print(table)
    for name, peak in report["peak_bytes"].items():
        console.print(f"peak memory, {name}: {sum(peak) / 1e9:.2f} GB")
    if bandwidth:
        console.print(
            f"copy bandwidth {bandwidth['bytes_a_second'] / 1e9:.1f} GB/s, "
            f"{bandwidth['bytes_a_step'] / 1e9:.3f} GB of parameters a step"
        )
    console.print(footer(about))


if __name__ == "__main__":
    typer.run(main)
