"""Measures a start, from `python` to the first answer, as multiples of the imports it cannot avoid.

    python benchmarks/startup.py
    python benchmarks/startup.py --runs 5 --phases --json out.json
    python benchmarks/startup.py --set rollout.name=hf

Each run times one after the other, so that all meet the same machine: `import torch, transformers,
ray, tensordict` in a fresh interpreter (the unit); a fresh interpreter that imports inf, builds
`InferenceEngine()`, answers with one token, restarts and answers again; and `inf --help`. The main
table has the medians in seconds, their multiples of the unit, and the goals for these.

`--phases` starts once more per run, traced: a `sitecustomize` (this file) is on the path of that
interpreter and of the engine's processes. It times every import and the functions of `WATCHED`,
with a stack, so that a phase counts only the seconds that no phase inside it counts.

How to read the phases: the caller's process first, then "child", the process that imports SGLang
beside the caller and the scheduler that is forked from it; median over the runs, lowest and
highest. "imports X" are the modules of package X, their own code and not what they import. Whose:
ours is `inf`, `_inf` and their functions; everything else is a third party's. A `wait` is for the
other thread or process and counts for neither. Phases below 0.05 s are summed up as "the rest". The
bar: no phase of ours above 1 s. The first run after an installation is slower: the disk is cold.
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
from typing import Annotated, Any

TRACE = "INF_STARTUP_TRACE"  # the file that a traced process appends to
SMALL = 0.05
UNIT = "import torch, transformers, ray, tensordict"
FIRST, RESTART, IMPORT, HELP = "first answer", "restart() and an answer", "import inf", "inf --help"
# Multiples of the unit.
GOALS = {FIRST: 3.2, RESTART: 1.3, IMPORT: 0.1, HELP: 0.2}
PROGRAM = """
import json, time
times = {"python": time.monotonic()}
from inf import InferenceEngine
times["import inf"] = time.monotonic()
with InferenceEngine(**CONFIG) as engine:
    times["ready"] = time.monotonic()
    engine.generate("Hello!", max_tokens=1)
    times["first answer"] = time.monotonic()
    if RESTART:
        engine.restart()
        engine.generate("Hello!", max_tokens=1)
        times["restart() and an answer"] = time.monotonic()
times["shut down"] = time.monotonic()
print(json.dumps(times))
"""
# Module, function in it, whose ("wait" counts for neither). Inside, other phases are subtracted.
WATCHED = (
    ("_inf.config.load", "load_config", "ours"),
    ("_inf.backends.verl.environment", "prepare", "ours"),
    ("_inf.models.resolve", "resolve_model", "ours"),
    ("_inf.backends.verl.launch_sglang", "launch", "ours"),
    ("_inf.backends.hf.launch_hf", "launch", "ours"),
    ("_inf.backends.hf.launch_hf", "_model", "transformers"),
    ("_inf.backends.verl.launch_sglang", "_join_process_group", "ours"),
    ("_inf.backends.verl.server_arguments", "server_arguments", "ours"),
    ("_inf.runtime.host", "Host.start", "wait"),
    ("_inf.backends.verl.corrected_rollout", "Rollout.__init__", "ours"),
    ("_inf.backends.verl.engine", "Engine.__init__", "ours"),
    ("_inf.runtime.child_process", "WorkerProcess.start", "ours"),
    ("_inf.runtime.child_process", "Worker.__setstate__", "ours"),
    ("_inf.runtime.child_process", "Worker.__call__", "ours"),
    ("_inf.backends.verl.child.setup", "import_all", "ours"),
    ("_inf.backends.verl.child.setup", "set_up", "ours"),
    ("_inf.runtime.fork_server", "_Popen._launch", "wait"),
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


def main(
    runs: int = 3,
    phases: bool = False,
    json: Path | None = None,
    assignments: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
) -> None:
    """Start an engine so often, and say how long it takes; raw numbers go into --json."""
    from rich.console import Console

    from _inf.config import parse_assignments

    config, results = parse_assignments(assignments or []), []
    for run in range(runs):
        results.append(measured(config, phases))
        status = f"run {run + 1} of {runs}: {results[-1]['seconds'][FIRST]:.1f} s to an answer"
        Console(stderr=True).print(status, highlight=False)
    about = machine()
    if json:
        report = {"machine": about, "command": sys.argv, "runs": results}
        json.write_text(dumps(report, indent=1))
    show(results, about)
    if phases:
        show_phases(results)


def measured(config: dict[str, Any], phases: bool) -> dict[str, Any]:
    """One run: seconds by name, the milestones of its start and, traced, its phases."""
    unit = timed("-c", UNIT)
    milestones, _ = start(config, traced=False)
    seconds = {name: milestones[name] for name in (IMPORT, "ready", FIRST)}
    seconds[RESTART] = milestones[RESTART] - milestones[FIRST]
    seconds[HELP] = timed("-c", "import _inf.apps.cli as cli; cli.main()", "--help")
    traced = start(config, traced=True)[1] if phases else []
    return {"unit": unit, "seconds": seconds, "phases": traced}


def timed(*arguments: str) -> float:
    """Seconds that a fresh interpreter takes."""
    import subprocess

    begin = time.monotonic()
    command = [sys.executable, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=600, check=True)
    return time.monotonic() - begin


def start(config: dict[str, Any], traced: bool) -> tuple[dict[str, float], list[Any]]:
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
            [sys.executable, "-c", f"RESTART, CONFIG = {not traced}, {config!r}{PROGRAM}"],
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

    unit = median([run["unit"] for run in results])
    table = Table("", "seconds", "multiple", "goal", title=f"a start, {about['cpu']}")
    table.add_row(UNIT, spread([run["unit"] for run in results]), "1", "")
    for name in results[0]["seconds"]:
        seconds = [run["seconds"][name] for run in results]
        goal = str(GOALS.get(name, ""))
        table.add_row(name, spread(seconds), f"{median(seconds) / unit:.2f}", goal)
    console = Console(width=120)
    console.print(table)
    console.print(f"{about['cores']} cores, {about['date']}", highlight=False)


def show_phases(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=120)
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


def median(each: list[float]) -> float:
    return sorted(each)[len(each) // 2]


def spread(each: list[float]) -> str:
    return f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


if __name__ == "__main__":
    import typer

    typer.run(main)
