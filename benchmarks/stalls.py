"""Measures how long streams stand still while Python looks for garbage in the serving process.

    python benchmarks/stalls.py
    python benchmarks/stalls.py --requests 9000 --clients 64

Three servers answer the same requests, one after the other: the command `inf serve`, whose process
leaves what its start has made out of Python's collections; a program with `engine.serve()`; and the
same program after `gc.freeze()`. The model is the tests' tiny one, which answers as fast on a CPU
as a large model on a GPU; the embedded one answers so slowly that nothing of this is seen.

How to read the table. Each client streams one answer after the other. Gap: the longest time between
two events of an answer; of all answers the median, the 99th percentile and the longest.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from common import footer, machine
from contestants import free_port
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
PROGRAM = """
import gc, sys
from inf import InferenceEngine
from _inf.config import parse_assignments

port, garbage, *assignments = sys.argv[1:]
with InferenceEngine(**parse_assignments(assignments)) as engine:
    if garbage == "freeze":
        gc.freeze()
    with engine.serve(port=int(port)):
        sys.stdin.read()
"""
SERVERS = {"inf serve": None, "program": "collect", "program, gc.freeze()": "freeze"}
START = 120.0
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def main(
    requests: Annotated[int, typer.Option(help="Answers of each server.")] = 6000,
    clients: Annotated[int, typer.Option(help="Streams at once.")] = 32,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 32,
) -> None:
    from tests.support.tiny import tiny_model

    keys = [f"model_path={tiny_model()}", "rollout.dtype=float32", "rollout.max_num_seqs=64"]
    keys += [f"rollout.{name}=512" for name in ("prompt_length", "response_length")]
    about = machine()
    columns = ("server", "answers/s", "gap: median, s", "99 %", "longest")
    table = Table(*columns, title=f"streams of {tokens} tokens, {about['cpu']}")
    for name, garbage in SERVERS.items():
        port = str(free_port())
        if garbage is None:
            options = itertools.chain.from_iterable(("--set", key) for key in keys)
            script = str(Path(sys.executable).with_name("inf"))
            command = [script, "serve", "--port", port, *options]
        else:
            command = [sys.executable, "-c", PROGRAM, port, garbage, *keys]
        server = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert server.stdin is not None
        try:
            rate, gaps = measure(server, port, requests, clients, tokens)
        finally:
            server.stdin.close()  # at which the program ends
            if garbage is None:
                server.terminate()
            server.wait(60)
        each = statistics.median(gaps), sorted(gaps)[int(0.99 * len(gaps))], max(gaps)
        table.add_row(name, f"{rate:.1f}", *(f"{gap:.2f}" for gap in each))
    Console(width=100).print(table)
    print(footer(about))


def measure(
    server: subprocess.Popen[bytes], port: str, requests: int, clients: int, tokens: int
) -> tuple[float, list[float]]:
    """Return the answers per second, and the longest gap of each."""
    until = time.monotonic() + START
    while True:
        try:
            longest_gap(port, 0, tokens)
            break
        except OSError:  # it has not started yet
            if server.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.5)
    begin = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        gaps = list(pool.map(lambda n: longest_gap(port, n, tokens), range(1, requests + 1)))
    return requests / (time.monotonic() - begin), gaps


def longest_gap(port: str, number: int, tokens: int) -> float:
    """Stream one answer."""
    body = {
        "messages": [{"role": "user", "content": f"Count to {number}."}],
        **{"max_tokens": tokens, "ignore_eos": True, "stream": True},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    times, last = [], b""
    with NO_PROXY.open(request, timeout=START) as events:
        for line in events:
            if line.strip():
                times.append(time.monotonic())
                last = line.strip()
    assert last == b"data: [DONE]", last
    return max(after - before for before, after in zip(times, times[1:], strict=False))


if __name__ == "__main__":
    gc.disable()  # in the clients
    sys.path.insert(0, str(ROOT))
    typer.run(main)
