"""Measures the phases of a start, from `python` to an engine that is ready.

    python benchmarks/startup.py
    python benchmarks/startup.py --runs 3 --json out.json

Each run starts a fresh interpreter that imports inf, builds `InferenceEngine()` and answers with
one token, once as it is and once traced. Traced means that a `sitecustomize` (this file) is on the
path of that interpreter and of the engine's child: it times every import and the functions of
`WATCHED`, with a stack, so that a phase counts only the seconds that no phase inside it counts.

How to read the tables. Milestones: seconds since the interpreter was started, untraced; "traced"
beside them is the time with tracing. Phases: the caller's process first, then the engine's child,
which starts while the caller waits; median over the runs, lowest and highest. "imports X" are the
modules of package X, their own code and not what they import. Whose: ours is `inf`, `_inf` and
their functions; everything else is a third party's. A `wait` is for the other thread or process and
counts for neither. Phases below 0.05 s are summed up as "the rest". The bar: no phase of ours above
1 s, which a line below the tables answers. The first run after an installation is slower: the disk
is cold.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import platform
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from json import dumps, loads
from pathlib import Path
from typing import Any

TRACE = "INF_STARTUP_TRACE"  # the file that a traced process appends to
SMALL = 0.05
PROGRAM = """
import json, time
times = {"python": time.monotonic()}
from inf import InferenceEngine
times["import inf"] = time.monotonic()
with InferenceEngine() as engine:
    times["ready"] = time.monotonic()
    engine.generate("Hello!", max_tokens=1)
    times["first answer"] = time.monotonic()
times["shut down"] = time.monotonic()
print(json.dumps(times))
"""
# Module, function in it, whose ("wait" counts for neither). Inside, other phases are subtracted.
WATCHED = (
    ("_inf.config.load", "load_config", "ours"),
    ("_inf.backends.verl.environment", "prepare", "ours"),
    ("_inf.models.resolve", "resolve_model", "ours"),
    ("_inf.backends.verl.launch", "launch", "ours"),
    ("_inf.backends.verl.launch", "_join_process_group", "ours"),
    ("_inf.backends.verl.server", "server_arguments", "ours"),
    ("_inf.runtime.host", "Host.start", "wait"),
    ("_inf.backends.verl.rollout", "Rollout.__init__", "ours"),
    ("_inf.backends.verl.engine", "Engine.__init__", "ours"),
    ("_inf.runtime.worker", "WorkerProcess.start", "ours"),
    ("_inf.runtime.worker", "Worker.__setstate__", "ours"),
    ("_inf.runtime.worker", "Worker.__call__", "ours"),
    ("_inf.backends.verl.child.setup", "set_up", "ours"),
    ("verl.workers.config.model", "HFModelConfig.__post_init__", "verl"),
    ("verl.workers.rollout.sglang_rollout.sglang_rollout", "SGLangRollout.__init__", "verl"),
    ("sglang.srt.server_args", "ServerArgs.__post_init__", "sglang"),
    ("sglang.srt.entrypoints.engine", "_launch_subprocesses", "sglang"),
    ("sglang.srt.entrypoints.engine", "_wait_for_scheduler_ready", "wait"),
    ("sglang.srt.managers.tokenizer_manager", "TokenizerManager.__init__", "sglang"),
    ("sglang.srt.managers.scheduler", "Scheduler.__init__", "sglang"),
    ("sglang.srt.managers.scheduler", "Scheduler.init_tokenizer", "sglang"),
    ("sglang.srt.managers.scheduler", "Scheduler.init_model_worker", "sglang"),
    ("sglang.srt.constrained.grammar_manager", "GrammarManager.__init__", "sglang"),
    ("sglang.srt.model_executor.model_runner", "ModelRunner.init_torch_distributed", "sglang"),
    ("sglang.srt.model_executor.model_runner", "ModelRunner.load_model", "sglang"),
    ("sglang.srt.model_executor.model_runner", "ModelRunner.init_device_graphs", "sglang"),
    ("transformers.models.auto.tokenization_auto", "AutoTokenizer.from_pretrained", "transformers"),
)


# In the traced processes


class Spans:
    """Nested spans, a stack a thread; each one's own seconds go to `seconds[owner, name]`."""

    def __init__(self, path: str, process: str) -> None:
        self.path, self.process = path, process
        self.local, self.lock = threading.local(), threading.Lock()
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)

    def run(self, owner: str, name: str, work: Callable[[], Any]) -> Any:
        stack = self.local.__dict__.setdefault("inside", [])
        stack.append(0.0)
        start = time.monotonic()
        try:
            return work()
        finally:
            took = time.monotonic() - start
            inside = stack.pop()
            if stack:
                stack[-1] += took
            with self.lock:
                self.seconds[owner, name] += took - inside

    def write(self) -> None:
        """Everything since the last time; the child is killed, so not only at the end."""
        with self.lock, open(self.path, "a") as file:
            for (owner, name), seconds in self.seconds.items():
                print(dumps([self.process, owner, name, seconds]), file=file)
            self.seconds.clear()


class Finder:
    """Finds nothing by itself: it times the modules that the ordinary finders find."""

    def __init__(self, spans: Spans) -> None:
        self.spans = spans

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(  # type: ignore[method-assign]
                self.execute, spec.loader.exec_module
            )
        return spec

    def execute(self, execute: Callable[[Any], None], module: Any) -> None:
        package = module.__name__.partition(".")[0]
        owner = "ours" if package in ("inf", "_inf") else package
        self.spans.run(owner, f"imports {package}", lambda: execute(module))
        for where, function, whose in WATCHED:
            if where == module.__name__:
                self.watch(module, function, whose)

    def watch(self, module: Any, path: str, owner: str) -> None:
        *classes, name = path.split(".")
        place = functools.reduce(getattr, classes, module)
        inner = place.__dict__[name]
        method = inner.__func__ if isinstance(inner, classmethod) else inner

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            try:
                return self.spans.run(owner, path, lambda: method(*args, **kwargs))
            finally:
                self.spans.write()

        setattr(place, name, classmethod(timed) if isinstance(inner, classmethod) else timed)


def trace(path: str) -> None:
    """Called by `sitecustomize`, before anything else is imported."""
    spawned = "spawn_main" in " ".join(sys.orig_argv)
    if "resource_tracker" in " ".join(sys.orig_argv):
        return
    sys.meta_path.insert(0, Finder(Spans(path, "child" if spawned else "caller")))


# The conductor


def main(runs: int = 5, json: Path | None = None) -> None:
    """Start an engine so often, and say where the seconds go; raw numbers go into --json."""
    from rich.console import Console

    # Each run a dict: milestones, and the traced run's milestones and phases.
    results = []
    for run in range(runs):
        plain, _ = start(traced=False)
        traced, phases = start(traced=True)
        results.append({"plain": plain, "traced": traced, "phases": phases})
        status = f"run {run + 1} of {runs}: ready after {plain['ready']:.1f} s"
        Console(stderr=True).print(status, highlight=False)
    about = machine()
    if json:
        report = {"machine": about, "command": sys.argv, "runs": results}
        json.write_text(dumps(report, indent=1))
    show(results, about)


def start(traced: bool) -> tuple[dict[str, float], list[Any]]:
    """One start: seconds to each milestone, and `[process, owner, name, seconds]` a phase."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        environment, trace_file = dict(os.environ), Path(folder, "trace.jsonl")
        if traced:
            here = str(Path(__file__).resolve().parent)
            hook = f"import sys\nsys.path.append({here!r})\nimport startup\nsys.path.pop()\n"
            Path(folder, "sitecustomize.py").write_text(
                f"{hook}startup.trace({str(trace_file)!r})\n"
            )
            paths = [folder, environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        begin = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True,
        )  # fmt: skip
        times = loads(done.stdout.splitlines()[-1])
        lines = trace_file.read_text().splitlines() if traced else []
    totals: dict[tuple[str, ...], float] = defaultdict(float)
    for process, owner, name, seconds in map(loads, lines):
        totals[process, owner, name] += seconds
    milestones = {name: moment - begin for name, moment in times.items()}
    return milestones, [[*key, seconds] for key, seconds in totals.items()]


def machine() -> dict[str, Any]:
    """What figures need beside them."""
    cpu = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu[0].split(":")[1].strip() if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }


def show(results: list[dict[str, Any]], about: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120)
    milestones = Table("milestone", "seconds", "traced", title=f"start to ready, {about['cpu']}")
    for name in results[0]["plain"]:
        plain, traced = ([run[kind][name] for run in results] for kind in ("plain", "traced"))
        milestones.add_row(name, spread(plain), spread(traced))
    console.print(milestones)
    phases: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for run in results:
        for process, owner, name, seconds in run["phases"]:
            phases[process, owner, name].append(seconds)
    for process in ("caller", "child"):
        table = Table("whose", "phase", "seconds", title=f"{process}: phases, own seconds")
        mine = {key[1:]: each for key, each in phases.items() if key[0] == process}
        shown = {key: each for key, each in mine.items() if median(each) >= SMALL}
        for key in sorted(shown, key=lambda key: -median(mine[key])):
            table.add_row(*key, spread(mine[key]))
        rest = sum(median(each) for key, each in mine.items() if key not in shown)
        table.add_row("", "the rest", f"{rest:.2f}")
        console.print(table)
    ours = {key: median(each) for key, each in phases.items() if key[1] == "ours"}
    (process, _, name), seconds = max(ours.items(), key=lambda item: item[1])
    console.print(f"longest phase of ours: {name} ({process}), {seconds:.2f} s", highlight=False)
    console.print(f"all of ours: {sum(ours.values()):.2f} s", highlight=False)
    console.print(f"{about['cores']} cores, {about['date']}", highlight=False)


def median(each: list[float]) -> float:
    return sorted(each)[len(each) // 2]


def spread(each: list[float]) -> str:
    return f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


if __name__ == "__main__":
    import typer

    typer.run(main)
