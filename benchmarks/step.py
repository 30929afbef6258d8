"""Accounts for the time of a decoding step on a CPU, part by part, in milliseconds.

    python benchmarks/step.py
    python benchmarks/step.py --rows 1 --steps 200 --json out.json

First the engine answers, for the whole time of a token. Then the model runs in this process as it
does in the scheduler's, with the same arguments and corrections, and a clock around each part:

    products, fused     the calls of the recorded step in C: matrix products, and all others
    head                the logits of the last layer's hidden states
    sampling            SGLang's `ModelRunner.sample`; the rows are greedy
    rest of the step    a batch's tensors, inputs of the recorded step, Python
    besides             what a token takes longer in the engine: the scheduler's loop, its messages,
                        the detokenizer, `generate`, and the same parts if they are slower there
    not recorded        the layers as the model's own Python code calls them, for comparison

Medians of `--steps` steps. "bound" is the time to read all weights of a step once, as PyTorch sums
as many numbers.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from common import JsonFile, footer, machine, save
from rich.console import Console
from rich.table import Table

from _inf.runtime.interpreter import TORCH_VARIABLES

os.environ.update(TORCH_VARIABLES)  # before torch is imported
PROMPT = 64
PRODUCT = "multiply"


def main(
    rows: Annotated[str, typer.Option(help="Rows of a batch.")] = "1,8,32",
    steps: Annotated[int, typer.Option(help="Timed steps of each.")] = 60,
    json_file: JsonFile = None,
) -> None:
    loads = [int(number) for number in rows.split(",")]
    server_args, tokens = engine_times(loads, steps)
    runner, bound = load(server_args)
    figures = {number: parts(runner, number, steps) for number in loads}
    for number, of_token in tokens.items():
        of_step = figures[number]
        of_step["besides"] = of_token - of_step["step"]
        of_step["engine"], of_step["bound"] = of_token, bound
    show(figures)
    save(json_file, {"milliseconds": figures})


def engine_times(loads: list[int], steps: int) -> tuple[Any, dict[int, float]]:
    """The engine's server arguments, and the milliseconds of one more token of each row."""
    from inf import InferenceEngine

    with InferenceEngine() as engine:

        def seconds(number: int, tokens: int) -> float:
            prompts = [{"prompt_token_ids": prompt(row)} for row in range(number)]
            start = time.perf_counter()
            engine.generate(
                prompts, max_tokens=tokens, temperature=0, ignore_eos=True, progress=False
            )
            return time.perf_counter() - start

        of_token = {}
        for number in loads:
            few, many = [], []
            for _ in range(4):  # the first one warms up, and fills the prefix cache
                few.append(seconds(number, 4))
                many.append(seconds(number, 4 + steps))
            median = statistics.median(many[1:]) - statistics.median(few[1:])
            of_token[number] = median * 1e3 / steps
        return engine.rollout._engine.server_args, of_token


def prompt(row: int) -> list[int]:
    return [1000 + row * PROMPT + position for position in range(PROMPT)]


def load(server_args: Any) -> tuple[Any, float]:
    """SGLang's runner of the model, as the scheduler has it, and the bound in milliseconds."""
    from _inf.backends.verl.child.setup import set_up
    from _inf.backends.verl.compiled_libraries import kernel_library

    folder = Path(tempfile.mkdtemp())
    set_up(
        folder / "engine.log", device="cpu", cpu_attention=True, pack_weights=True,
        kernel_library=kernel_library(), experts=False, trust_remote_code=False,
    )  # fmt: skip
    import torch
    from sglang.bench_one_batch import load_model
    from sglang.srt.server_args import PortArgs, set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(server_args)
    runner, _ = load_model(server_args, PortArgs.init_new(server_args), 0, 0)
    numbers = torch.ones(sum(weight.numel() for weight in runner.model.parameters()))
    return runner, median_of(9, numbers.sum)


def median_of(times: int, call: Callable[[], Any]) -> float:
    """Milliseconds of a call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def parts(runner: Any, number: int, steps: int) -> dict[str, float]:
    from sglang import bench_one_batch as upstream

    runner.req_to_token_pool.clear()
    runner.token_to_kv_pool_allocator.clear()
    inputs = [prompt(row) for row in range(number)]
    requests = upstream.prepare_synthetic_inputs_for_latency_test(number, PROMPT, inputs)
    ids, _, batch = upstream.extend(requests, runner)
    taken: dict[str, list[float]] = {}
    clocks = [
        clocked(runner, "sample", "sampling", taken),
        clocked(runner.model.logits_processor, "forward", "head", taken),
    ]
    of_calls: dict[str, float] = {}
    for step in range(steps):
        start = time.perf_counter()
        ids, _ = upstream.decode(ids, batch, runner)
        taken.setdefault("step", []).append((time.perf_counter() - start) * 1e3)
        if step == steps // 2:  # attention takes longer at each step
            of_calls = in_c(runner, number)
    for restore in clocks:
        restore()
    median = {part: statistics.median(values[3:]) for part, values in taken.items()}
    median |= of_calls
    known = ("products", "fused", "head", "sampling")
    median["rest of the step"] = median["step"] - sum(median[part] for part in known)
    median["not recorded"] = without_recording(runner, upstream, ids, batch, median["head"])
    return median


def clocked(
    owner: Any, method: str, part: str, taken: dict[str, list[float]]
) -> Callable[[], None]:
    original = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        taken.setdefault(part, []).append((time.perf_counter() - start) * 1e3)
        return result

    setattr(owner, method, timed)
    return lambda: setattr(owner, method, original)


def in_c(runner: Any, number: int) -> dict[str, float]:
    """The calls of the last recorded step, again."""
    from _inf.backends.verl.child import kernels

    recorded = runner.graph_runner
    product = list(kernels._ARGUMENTS).index(PRODUCT)
    calls: dict[str, list[Any]] = {"products": [], "fused": []}
    for call in recorded._step._calls:
        calls["products" if call.function == product else "fused"].append(call)
    arrays = {part: (kernels.RecordedCall * len(some))(*some) for part, some in calls.items()}
    return {
        part: median_of(25, lambda array=array: recorded._kernels.run(array, number))  # type: ignore[misc]
        for part, array in arrays.items()
    }


def without_recording(runner: Any, upstream: Any, ids: Any, batch: Any, head: float) -> float:
    """The layers of a step, called by the model's own code."""
    taken: dict[str, list[float]] = {}
    recorded, runner.graph_runner = runner.graph_runner, None
    restore = clocked(runner, "forward_decode", "layers", taken)
    for _ in range(25):
        ids, _ = upstream.decode(ids, batch, runner)
    restore()
    runner.graph_runner = recorded
    return statistics.median(taken["layers"]) - head


def show(figures: dict[int, dict[str, float]]) -> None:
    table = Table("part", *(f"{number} rows" for number in figures))
    order = (
        "products", "fused", "head", "sampling", "rest of the step", "step", "besides",
        "engine", "not recorded", "bound",
    )  # fmt: skip
    for part in order:
        table.add_row(part, *(f"{of_step[part]:.1f}" for of_step in figures.values()))
    Console().print(table)
    print(footer(machine()))


if __name__ == "__main__":
    typer.run(main)
