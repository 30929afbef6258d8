"""Measures how a call grows, in time and memory, next to what one would expect.

    python benchmarks/growth.py
    python benchmarks/growth.py --only rows,turns --json out.json

Parts, each a table:

    rows      one call with more and more rows: prompts of 64 tokens, answers of 32
    prompts   one row with a longer and longer prompt of random ids, and an answer of one token
    answers   one row with a longer and longer answer to a prompt of 64 tokens
    turns     one conversation with more and more turns of a tool, with the tests' small model
    sessions  more and more sessions of `inf serve` at once, each a conversation of three turns with
              answers of 24 tokens

All but `turns` are of the embedded model in float32. Prompts are new in each run, so no cache has
them; answers are greedy and have exactly the stated length. Seconds: of the whole call, the fastest
of `--runs` runs. The caller's core seconds: of this process, without the engine's, in that run; for
`sessions` it is the server and its clients together. Memory: the most that each process had
resident during the last run (the kernel's VmHWM), pages that it shares with others included.

What one would expect is computed from the fewest numbers (`EXPECTED`); it is no fit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from common import JsonFile, machine, save
from rich.console import Console
from rich.table import Table

from inf import InferenceEngine

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.support.tool_calling import ENDLESS, TOOL_MODEL, question  # noqa: E402

ANSWER, TURNS_ANSWER, SESSION_TURNS = 32, 24, 3
_number = itertools.count()


@dataclasses.dataclass
class Point:
    """size: what grows. caller_cpu: core seconds. caller, engine: bytes, the most at once."""

    size: int
    seconds: float
    caller_cpu: float
    caller: int = 0
    engine: int = 0


@dataclasses.dataclass(frozen=True)
class Part:
    """measure: returns the points; settings: of its engine."""

    sizes: tuple[int, ...]
    measure: Callable[[InferenceEngine, tuple[int, ...], int], list[Point]]
    settings: dict[str, Any]


def main(
    only: Annotated[str, typer.Option(help="The parts, by name.")] = "",
    runs: Annotated[int, typer.Option(help="Runs of each point; the fastest counts.")] = 2,
    json_file: JsonFile = None,
) -> None:
    figures: dict[str, list[dict[str, Any]]] = {}
    for name in only.split(",") if only else PARTS:
        if name not in PARTS:
            raise typer.BadParameter(f"{name}: the parts are {', '.join(PARTS)}")
        part = PARTS[name]
        with InferenceEngine(**part.settings) as engine:
            points = part.measure(engine, part.sizes, runs)
        figures[name] = [dataclasses.asdict(point) for point in points]
        show(name, figures[name])
        save(json_file, figures)
    Console().print(str(machine()))


# What one would expect

Points = list[dict[str, Any]]
# Of the embedded model: parameters of the layers, and for each pair of tokens the operations of
# attention, 4 x layers x width, of which the causal mask leaves half.
LAYER_PARAMETERS, PAIR_OPERATIONS = 106.2e6, 2 * 30 * 576

LABELS = {
    "rows": "rows of a call",
    "prompts": "tokens of the prompt",
    "answers": "tokens of the answer",
    "turns": "turns of a conversation",
    "sessions": "sessions at once",
}


def _flat_then_linear(points: Points) -> list[float]:
    """Constant until the products are bound by arithmetic, then in proportion."""
    first, last = points[0], points[-1]
    return [max(first["seconds"], last["seconds"] * p["size"] / last["size"]) for p in points]


def _operations(points: Points) -> list[float]:
    """The operations that a prompt takes, at the rate of the middle point."""

    def count(size: float) -> float:
        return 2 * LAYER_PARAMETERS * size + PAIR_OPERATIONS * size**2

    middle = points[len(points) // 2]
    rate = middle["seconds"] / count(middle["size"])
    return [rate * count(point["size"]) for point in points]


def _linear(points: Points) -> list[float]:
    """The time of the second point, for each unit."""
    rate = points[1]["seconds"] / points[1]["size"]
    return [rate * point["size"] for point in points]


EXPECTED: dict[str, Callable[[Points], list[float]]] = {
    "rows": _flat_then_linear,
    "prompts": _operations,
    "answers": _linear,
    "turns": _linear,
    "sessions": _flat_then_linear,
}


# One point


def processes() -> dict[str, list[psutil.Process]]:
    """This process, and the engine's: those that have the model, not the fork server."""
    own = psutil.Process()
    children = own.children(recursive=True)
    leaves = [each for each in children if not each.children()]
    return {"caller": [own], "engine": leaves}


def forget_peaks() -> None:
    for process in itertools.chain(*processes().values()):
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def peaks() -> dict[str, int]:
    """The most bytes that each side had resident since `forget_peaks`."""

    def peak(process: psutil.Process) -> int:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

    return {side: sum(map(peak, group)) for side, group in processes().items()}


def measured(engine: InferenceEngine, size: int, run: Callable[[int], None], runs: int) -> Point:
    """Return the fastest of the runs of a size, with the memory of the last one."""
    found = []
    for _ in range(runs):
        forget_peaks()
        cpu, start = time.process_time(), time.perf_counter()
        run(size)
        found.append(Point(size, time.perf_counter() - start, time.process_time() - cpu))
    best = min(found, key=lambda point: point.seconds)
    return dataclasses.replace(best, **peaks())


def each_size(run: Callable[[InferenceEngine, int], None]) -> Callable[..., list[Point]]:
    def measure(engine: InferenceEngine, sizes: tuple[int, ...], runs: int) -> list[Point]:
        run(engine, sizes[0])  # warm
        return [measured(engine, size, lambda size: run(engine, size), runs) for size in sizes]

    return measure


# The parts


def generate(engine: InferenceEngine, count: int, prompt: int, answer: int) -> None:
    """One call of new prompts of random ids, and answers of exactly so many tokens."""
    rng = random.Random(next(_number))
    # The first id tells a run's prompts from those of all others.
    prompts = [[rng.randrange(1000, 40000) for _ in range(prompt)] for _ in range(count)]
    asked = [{"prompt_token_ids": ids} for ids in prompts]
    output: Any = engine.generate(
        asked, max_tokens=answer, temperature=0, ignore_eos=True, progress=False
    )
    assert all(len(ids) == answer for ids in output.token_ids)


def turns(engine: InferenceEngine, sizes: tuple[int, ...], runs: int) -> list[Point]:
    """The time and the core seconds from the start of a call to the end of each turn's answer: the
    tool says when it is called."""
    best: dict[int, Point] = {}
    begun = (0.0, 0.0)
    calls: list[Point] = []

    def calculator(expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: Numbers, + - * / // % ** and parentheses, such as (3 + 4) * 12
        """
        now = (time.perf_counter() - begun[0], time.process_time() - begun[1])
        calls.append(Point(len(calls) + 1, *now))
        return "84"

    for run in range(runs + 1):  # the first is not counted
        calls.clear()
        forget_peaks()
        begun = (time.perf_counter(), time.process_time())
        asked = question(f"{2 + next(_number)} * 7") + ENDLESS
        engine.generate(asked, tools=[calculator], temperature=0, progress=False)
        assert len(calls) >= max(sizes), f"{len(calls)} turns"
        held = peaks()
        for point in calls if run else ():
            if point.size in sizes:
                now = dataclasses.replace(point, **held)
                best[point.size] = min(now, best.get(point.size, now), key=lambda p: p.seconds)
    return [best[size] for size in sizes]


def sessions(engine: InferenceEngine, sizes: tuple[int, ...], runs: int) -> list[Point]:
    from _inf.backends.openai.http import httpx

    async def conversation(http: Any) -> None:
        name = f"session-{next(_number)}"
        messages = [{"role": "user", "content": f"Tell a long story of {name}."}]
        for _ in range(SESSION_TURNS):
            body = {"model": model, "messages": messages, "max_tokens": TURNS_ANSWER}
            body |= {"temperature": 0, "ignore_eos": True}
            reply = await http.post(f"/sessions/{name}/v1/chat/completions", json=body)
            messages += [reply.raise_for_status().json()["choices"][0]["message"]]
            messages += [{"role": "user", "content": "Go on with it."}]
        await http.delete(f"/sessions/{name}")

    async def at_once(count: int) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as http:
            waiting: list[Awaitable[None]] = [conversation(http) for _ in range(count)]
            await asyncio.gather(*waiting)

    model = engine.config.model_name
    with engine.serve() as server:
        url = server.base_url.removesuffix("/v1")
        asyncio.run(at_once(1))  # warm
        return [measured(engine, size, lambda n: asyncio.run(at_once(n)), runs) for size in sizes]


def lengths(prompt: int, answer: int) -> dict[str, Any]:
    return {"rollout": {"dtype": "float32", "prompt_length": prompt, "response_length": answer}}


TURNS = (1, 2, 4, 8, 16)
LOOP = {"enable": True, "max_assistant_turns": TURNS[-1] + 1}
TOOL_SETTINGS: dict[str, Any] = {"model_path": str(TOOL_MODEL), **lengths(1024, 3072)}
TOOL_SETTINGS["rollout"] |= {"multi_turn": LOOP}
PARTS = {
    "rows": Part(
        (1, 4, 16, 64, 256),
        each_size(lambda engine, size: generate(engine, size, 64, ANSWER)),
        lengths(512, 512),
    ),
    "prompts": Part(
        (100, 400, 1600, 4000, 8000),
        each_size(lambda engine, size: generate(engine, 1, size, 1)),
        lengths(8000, 128),
    ),
    "answers": Part(
        (16, 128, 512, 2048),
        each_size(lambda engine, size: generate(engine, 1, 64, size)),
        lengths(512, 2048),
    ),
    "turns": Part(TURNS, turns, TOOL_SETTINGS),
    "sessions": Part((1, 4, 16, 64), sessions, lengths(1024, 512)),
}


def show(name: str, points: list[dict[str, Any]]) -> None:
    table = Table(LABELS[name], "seconds", "expected", "caller, core s", "caller, GB", "engine, GB")
    for point, expected in zip(points, EXPECTED[name](points), strict=True):
        table.add_row(
            str(point["size"]),
            f"{point['seconds']:.2f}",
            f"{expected:.2f}",
            f"{point['caller_cpu']:.3f}",
            f"{point['caller'] / 1e9:.3f}",
            f"{point['engine'] / 1e9:.3f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
