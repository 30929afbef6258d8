"""Compares `engine.generate` with the raw SGLang engine and Transformers' `generate` in tok/s.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --loads 1 --pairs 3 --json out.json

Three engines, each in its own process, all loaded at once, one working at a time:

    ours            `InferenceEngine.generate`
    raw             `sglang.Engine.generate` with the very `ServerArgs` object of ours (ports aside)
    Transformers    `model.generate` on the rows as one batch, left-padded, in the engine's dtype

All get the same token ids and the same sampling (temperature 1, no filter, EOS ignored, so that
every row has the requested length); both engines also return log probs. A load is either so
many rows of equal length (prompts of 64 tokens, answers of `--tokens`), or `mixed`: 64 word
problems of very different lengths, answers of a quarter of `--tokens` to four times `--tokens`
(16 to 256). Transformers generates all rows to the longest answer; only the requested
tokens count. Prompts are new in each pair, so no engine has them in a cache. The engines alternate
within a pair, and their order from pair to pair. Each first does one untimed run of the load.

How to read the table. tok/s: the median over the pairs. ours/raw: the ratio of those medians, then
the quartiles of the ratio pair by pair; a gap smaller than that spread is noise. Bound: rows that
run at once x memory bandwidth / bytes of parameters, i.e. what reading every weight once a step
would allow; a big batch is bound by arithmetic first. Bandwidth is a measured copy, bytes read plus
bytes written. Memory: the most that a process tree held while it did its untimed runs, all three
being up (PSS: shared pages are divided among those that share them; a GPU's memory is not in it);
nothing is sampled in timed runs. A run of `mixed` takes minutes: the untimed ones are of 8 tokens a
row there, and Transformers, the slowest, answers only the first 3 pairs, which its ratio is over.

The raw engine needs three things to run on a CPU at all, and gets them: the environment that
`_inf.backends.verl.environment.prepare` sets (stand-ins for CUDA's libraries among them), our
server arguments (`attention_backend: torch_native` and others, see
`_inf/backends/verl/server.py`), and a `__main__` guard. It runs without any of our fixes of the
scheduler, and with the detokenizer process that SGLang starts and that idles. Our engine's child
runs with `GOMP_SPINCOUNT=10000` (idle OpenMP threads soon sleep); here all three do, unless the
caller's environment says otherwise. Large pages (`THP_MEM_ALLOC_ENABLE`) are ours alone.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import os
import pickle
import platform
import random
import select
import socket
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
from rich.console import Console
from rich.table import Table

from _inf.runtime.interpreter import TORCH_VARIABLES

PROMPT_TOKENS = 64
MIXED, MIXED_ROWS = "mixed", 64
TRANSFORMERS_MIXED_PAIRS, MIXED_WARM = 3, 8
ANSWER_SECONDS = 3600.0
WEIGH_SECONDS = 0.5
CONTESTANTS = ("ours", "raw", "transformers")
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "ignore_eos": True}


def main(
    loads: Annotated[str, typer.Option(help="Batch sizes, and mixed.")] = "1,8,32,mixed",
    pairs: Annotated[int, typer.Option(help="Timed runs of each contestant, a load.")] = 7,
    tokens: Annotated[int, typer.Option(help="Answer length of the equal loads.")] = 64,
    config: Annotated[str | None, typer.Option("--config", "-c", help="A YAML file.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One config key.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Raw numbers go here.")] = None,
) -> None:
    figures: dict[str, Any] = {}
    report = {"machine": machine(), "command": sys.argv, "tokens": tokens, "loads": figures}
    contestants: dict[str, Contestant] = {}
    try:
        enter(contestants, config, assignments or [])
        bandwidth = contestants["transformers"].ask(bandwidth=True)
        report |= {"engine": contestants["ours"].ready["engine"], "bandwidth": bandwidth}
        for load in loads.split(","):
            figures[load] = measure(contestants, load, pairs, tokens)
            report["peak_bytes"] = {name: each.peak for name, each in contestants.items()}
            if json_file:
                json_file.write_text(json.dumps(report, indent=1))
    finally:
        for contestant in contestants.values():
            contestant.close()
    show(report)


def machine() -> dict[str, Any]:
    """What figures need beside them."""
    cpu = [line for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu[0].split(":")[1].strip() if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "load_average": os.getloadavg()[0],
    }


# The conductor


class Contestant:
    """A child process that answers JSON lines; `peak` is the most its process tree held."""

    program = __file__

    def __init__(self, name: str, **settings: Any) -> None:
        self.name, self.peak = name, 0
        self.log: IO[bytes] = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, self.program, "--contestant", name, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={"GOMP_SPINCOUNT": TORCH_VARIABLES["GOMP_SPINCOUNT"], **os.environ},
        )
        self.ready = self._answer(watched=False)

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
            self.peak = max(self.peak, sum(map(held, self._tree())))
        self.log.seek(0)
        tail = self.log.read().decode(errors="replace")[-3000:]
        sys.exit(f"{self.name} gave no answer; the end of what it said:\n{tail}")

    def _tree(self) -> list[psutil.Process]:
        try:
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def close(self) -> None:
        tree = self._tree()
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


def enter(contestants: dict[str, Contestant], config: str | None, assignments: list[str]) -> None:
    status = Console(stderr=True).print
    for name in CONTESTANTS:
        status(f"starting {name} ...")
        if name == "ours":
            settings: dict[str, Any] = {"config": config, "assignments": assignments}
        elif name == "raw":
            settings = {"server_args": contestants["ours"].ready["server_args"]}
        else:
            engine = contestants["ours"].ready["engine"]
            settings = {key: engine[key] for key in ("model", "dtype", "device")}
        contestants[name] = Contestant(name, **settings)


def measure(
    contestants: dict[str, Contestant], load: str, pairs: int, tokens: int
) -> dict[str, list[float]]:
    """Tokens per second, a contestant: one figure a pair."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for pair in range(-1, pairs):  # -1: the untimed run
        texts, limits = rows(load, tokens, seed=f"{load} {pair}")
        cut = None if load == MIXED else PROMPT_TOKENS
        prompts = contestants["ours"].ask(texts=texts, cut=cut)
        for name in CONTESTANTS if pair % 2 else reversed(CONTESTANTS):
            if name == "transformers" and load == MIXED and pair >= TRANSFORMERS_MIXED_PAIRS:
                continue
            asked = [MIXED_WARM] * len(limits) if load == MIXED and pair < 0 else limits
            answer = contestants[name].ask(watched=pair < 0, prompts=prompts, limits=asked)
            if answer["tokens"] != asked:
                sys.exit(f"{name}: rows of {answer['tokens']} tokens in place of {asked}")
            if pair >= 0:
                rates[name].append(sum(limits) / answer["seconds"])
        done = "warm" if pair < 0 else f"pair {pair + 1} of {pairs}"
        last = ", ".join(f"{name} {figures[-1]:.1f}" for name, figures in rates.items() if figures)
        Console(stderr=True).print(f"{load}: {done}  {last}", highlight=False)
    return rates


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
    """Word problems, and how many tokens each answer shall have; the same for the same seed."""
    rng = random.Random(seed)
    if load != MIXED:
        return [problem(rng, 8) for _ in range(int(load))], [tokens] * int(load)
    texts = [problem(rng, rng.randint(1, 5)) for _ in range(MIXED_ROWS)]
    return texts, [rng.randint(max(1, tokens // 4), tokens * 4) for _ in texts]


def problem(rng: random.Random, sentences: int) -> str:
    def sentence() -> str:
        a, b = rng.sample(NAMES, 2)
        n, m = rng.randint(10, 999), rng.randint(2, 99)
        return rng.choice(STEPS).format(a=a, b=b, n=n, m=m, t=rng.choice(THINGS))

    return " ".join(sentence() for _ in range(sentences)) + " How many are left?"


# The contestants


class Channel:
    """JSON lines on the process's own stdin and stdout, out of reach of whoever prints."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def send(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._out, flush=True)

    def jobs(self) -> Iterator[dict[str, Any]]:
        return map(json.loads, sys.stdin)


def ours(channel: Channel, config: str | None, assignments: list[str]) -> None:
    from _inf.config import parse_assignments
    from inf import InferenceEngine

    with InferenceEngine(config, **parse_assignments(assignments)) as engine:
        server_args = engine.rollout._engine.server_args
        facts = {
            "model": server_args.model_path,
            "dtype": server_args.dtype,
            "device": server_args.device,
            "max_running_requests": server_args.max_running_requests,
            "server_args": {k: str(v) for k, v in dataclasses.asdict(server_args).items()},
        }
        pickled = base64.b64encode(pickle.dumps(server_args)).decode()
        channel.send({"engine": facts, "server_args": pickled})
        for job in channel.jobs():
            if "texts" in job:
                channel.send(tokenized(engine.tokenizer, job["texts"], job["cut"]))
                continue
            prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
            start = time.perf_counter()
            output = engine.generate(prompts, max_tokens=job["limits"], progress=False, **SAMPLING)
            seconds = time.perf_counter() - start
            channel.send({"seconds": seconds, "tokens": [len(row) for row in output.logprobs]})


def tokenized(tokenizer: Any, texts: list[str], cut: int | None) -> list[list[int]]:
    """As the engine would render them; `cut` tokens of each."""
    conversations = [[{"role": "user", "content": text}] for text in texts]
    ids = tokenizer.apply_chat_template(conversations, add_generation_prompt=True)
    return [row[:cut] for row in ids]


def raw(channel: Channel, server_args: str) -> None:
    from _inf.backends.verl import environment

    environment.prepare()
    import sglang

    arguments = copy.copy(pickle.loads(base64.b64decode(server_args)))
    arguments.port, arguments.nccl_port = free_port(), free_port()
    engine = sglang.Engine(server_args=arguments)
    channel.send("ready")
    for job in channel.jobs():
        params = [{**SAMPLING, "max_new_tokens": limit} for limit in job["limits"]]
        start = time.perf_counter()
        outputs = engine.generate(
            input_ids=job["prompts"], sampling_params=params, return_logprob=True
        )
        seconds = time.perf_counter() - start
        lengths = [len(output["meta_info"]["output_token_logprobs"]) for output in outputs]
        channel.send({"seconds": seconds, "tokens": lengths})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def transformers(channel: Channel, model: str, dtype: str, device: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device).eval()
    network.generation_config.eos_token_id = None  # as ignore_eos
    tied = network.get_input_embeddings().weight is network.get_output_embeddings().weight
    looked_up = 0 if tied else network.get_input_embeddings().weight.nbytes
    bytes_a_step = sum(each.nbytes for each in network.parameters()) - looked_up
    channel.send("ready")
    for job in channel.jobs():
        if "bandwidth" in job:
            copied = copy_bandwidth(torch, device)
            channel.send({"bytes_a_second": copied, "bytes_a_step": bytes_a_step})
            continue
        width = max(map(len, job["prompts"]))
        start = time.perf_counter()
        ids = torch.tensor([[0] * (width - len(row)) + row for row in job["prompts"]])
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in job["prompts"]])
        with torch.inference_mode():
            answers = network.generate(
                ids.to(device),
                attention_mask=mask.to(device),
                max_new_tokens=max(job["limits"]),
                do_sample=True,
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                pad_token_id=0,
            )[:, width:].tolist()
        seconds = time.perf_counter() - start
        lengths = [len(row[:limit]) for row, limit in zip(answers, job["limits"], strict=True)]
        channel.send({"seconds": seconds, "tokens": lengths})


def copy_bandwidth(torch: Any, device: str) -> float:
    """Bytes read plus bytes written, the best of ten copies of half a gigabyte."""
    source = torch.ones(1 << 27, device=device)
    target, best = torch.empty_like(source), float("inf")
    for _ in range(10):
        start = time.perf_counter()
        target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return float(2 * source.nbytes / best)


# The table


def show(report: dict[str, Any]) -> None:
    memory, bandwidth = report["peak_bytes"], report["bandwidth"]
    about, console = report["machine"], Console(width=120)
    table = Table(title=f"tokens per second, {report['engine']['dtype']}, {about['cpu']}")
    for heading in ("load", "ours", "raw", "ours/raw", "Transformers", "ours/Tr.", "bound"):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    steps = bandwidth["bytes_a_second"] / bandwidth["bytes_a_step"]
    for load, rates in report["loads"].items():
        count = MIXED_ROWS if load == MIXED else int(load)
        at_once = min(count, report["engine"]["max_running_requests"] or count)
        medians = {name: statistics.median(figures) for name, figures in rates.items()}
        table.add_row(
            load,
            f"{medians['ours']:.1f}",
            f"{medians['raw']:.1f}",
            ratio(rates["ours"], rates["raw"]),
            f"{medians['transformers']:.1f}",
            ratio(rates["ours"], rates["transformers"]),
            f"{at_once * steps:.0f}",
        )
    console.print(table)
    for name in CONTESTANTS:
        console.print(f"peak memory, {name}: {memory[name] / 1e9:.2f} GB")
    console.print(
        f"copy bandwidth {bandwidth['bytes_a_second'] / 1e9:.1f} GB/s, "
        f"{bandwidth['bytes_a_step'] / 1e9:.3f} GB of parameters a step"
    )
    console.print(f"{about['cores']} cores, {about['memory_gb']} GB, {about['date']}")


def ratio(ours: list[float], theirs: list[float]) -> str:
    """Of the medians; and the quartiles pair by pair, where there are pairs enough."""
    each = [a / b for a, b in zip(ours, theirs, strict=False)]
    middle = statistics.median(ours[: len(theirs)]) / statistics.median(theirs)
    if len(each) < 2:
        return f"{middle:.3f}"
    low, _, high = statistics.quantiles(each, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        perform = globals()[sys.argv[2]]
        perform(Channel(), **json.loads(sys.argv[3]))
    else:
        typer.run(main)
