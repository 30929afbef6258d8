"""Measures streams over HTTP from `engine.serve()`, against the same streams in process and from
SGLang's own HTTP server, one after the other on this machine.

    python benchmarks/serve.py
    python benchmarks/serve.py --clients 8 --pairs 3 --json /tmp/serve.json
    python benchmarks/serve.py -c config.yaml --set rollout.dtype=float32

N clients at once stream completions of token ids, each of TOKENS tokens. SGLang's server has our
server arguments and its own tokenizer and detokenizer. A ratio is the median of the pairs' ratios,
with their quartiles, because a machine's speed drifts. The clients read their sockets and parse
nothing, so they take little time from the server. CPU s: the core seconds that our process used,
without the engine's, for the same streams served and in process; unlike the speeds, it drifts
little.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import os
import pickle
import selectors
import socket
import statistics
import sys
import threading
import time
from typing import Annotated, Any
from urllib.parse import urlsplit

import psutil
import throughput
import typer
from common import Assignments, ConfigFile, JsonFile, footer, machine, quartiles, ratios, save
from contestants import Channel, free_port, prepare, tokenized
from rich.console import Console
from rich.table import Table
from throughput import rows

CONTESTANTS = ("served", "in process", "sglang")
PROMPT_TOKENS = 128
READY_SECONDS = 300
SILENT_SECONDS = 300  # in which no stream gets an event
SAMPLING: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}


class Contestant(throughput.Contestant):
    """A child process of this file."""

    program = __file__


def main(
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "1,8,32",
    pairs: Annotated[int, typer.Option(help="Timed runs of each contestant, a number.")] = 5,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    config: ConfigFile = None,
    assignments: Assignments = None,
    json_file: JsonFile = None,
) -> None:
    status = Console(stderr=True).print
    figures: dict[str, Any] = {}
    report = {"machine": machine(), "command": sys.argv, "tokens": tokens, "clients": figures}
    started: list[Contestant] = []
    try:
        status("starting ours ...")
        started.append(Contestant("ours", config=config, assignments=assignments or []))
        ours = started[0]
        status("starting sglang ...")
        started.append(Contestant("sglang", server_args=ours.ready["server_args"]))
        urls = {"served": ours.ready["url"], "sglang": started[1].ready["url"]}
        for count in map(int, clients.split(",")):
            figures[str(count)] = measure(ours, urls, count, pairs, tokens)
            save(json_file, report)
    finally:
        for contestant in started:
            contestant.close()
    show(report)


def measure(
    ours: Contestant, urls: dict[str, str], count: int, pairs: int, tokens: int
) -> dict[str, dict[str, list[float]]]:
    """Return, for each run, tokens per second, the median client's seconds to the first token, and
    the core seconds that our process used without its children."""
    found: dict[str, Any] = {name: {"rate": [], "first": [], "cpu": []} for name in CONTESTANTS}
    process = psutil.Process(ours.process.pid)
    for pair in range(-1, pairs):  # -1: the untimed run
        for name in CONTESTANTS if pair % 2 else reversed(CONTESTANTS):
            texts, _ = rows(str(count), tokens, seed=f"{count} {pair} {name}")  # none is cached
            prompts = ours.ask(texts=texts, cut=PROMPT_TOKENS)
            before = sum(process.cpu_times()[:2])
            if name == "in process":
                answer = ours.ask(prompts=prompts, tokens=tokens)
            else:
                answer = over_http(urls[name], prompts, tokens)
            if pair >= 0:
                found[name]["rate"].append(count * tokens / answer["seconds"])
                found[name]["first"].append(statistics.median(answer["first"]))
                found[name]["cpu"].append(sum(process.cpu_times()[:2]) - before)
        done = "warm" if pair < 0 else f"pair {pair + 1} of {pairs}"
        last = ", ".join(f"{n} {each['rate'][-1]:.1f}" for n, each in found.items() if each["rate"])
        Console(stderr=True).print(f"{count} clients: {done}  {last}", highlight=False)
    return found


# The clients


def over_http(url: str, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Stream one completion per prompt, all at once; `first`: each one's seconds to its first
    event. One thread waits for all sockets: asyncio's streams took more than twice its time, which
    the server and the engine lacked."""
    begin = time.perf_counter()
    with selectors.DefaultSelector() as sockets:
        clients = [Client(url, prompt, tokens) for prompt in prompts]
        for client in clients:
            sockets.register(client.socket, selectors.EVENT_READ, client)
        while sockets.get_map():
            ready = sockets.select(SILENT_SECONDS)
            if not ready:
                sys.exit(f"{url} sent nothing for {SILENT_SECONDS} seconds")
            for client in (key.data for key, _ in ready):
                if not client.read():
                    sockets.unregister(client.socket)
                    client.finish()
    return {
        "seconds": time.perf_counter() - begin,
        "first": [client.first for client in clients],
    }


class Client:
    """Sends a request for a stream. first: seconds to its first event."""

    def __init__(self, url: str, prompt: list[int], tokens: int) -> None:
        parts = urlsplit(url)
        model = parts.query.removeprefix("model=") or "default"
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, **SAMPLING}
        content = json.dumps(body).encode()
        head = (
            f"POST {parts.path}/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            "Connection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self.url, self.first, self._tail = url, 0.0, b""
        self._begin = time.perf_counter()
        host, _, port = parts.netloc.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(head.encode() + content)

    def read(self) -> bool:
        """Read what has arrived; return whether more may come."""
        part = self.socket.recv(65536)
        self._tail = (self._tail + part)[-4096:]
        if not self.first and b"data: " in self._tail:
            self.first = time.perf_counter() - self._begin
        return bool(part)

    def finish(self) -> None:
        self.socket.close()
        if b"[DONE]" not in self._tail or b'data: {"error"' in self._tail:
            sys.exit(f"{self.url} did not finish a stream: {self._tail[-500:]!r}")


# The contestants


def ours(channel: Channel, config: str | None, assignments: list[str]) -> None:
    from _inf.config import parse_assignments
    from inf import InferenceEngine

    with (
        InferenceEngine(config, **parse_assignments(assignments)) as engine,
        engine.serve() as server,
    ):
        pickled = base64.b64encode(pickle.dumps(engine.rollout._engine.server_args)).decode()
        url = f"{server.base_url}?model={engine.config.model_name}"
        channel.send({"url": url, "server_args": pickled})
        for job in channel.jobs():
            if "texts" in job:
                channel.send(tokenized(engine.tokenizer, job["texts"], job["cut"]))
            else:
                channel.send(asyncio.run(in_process(engine, job["prompts"], job["tokens"])))


async def in_process(engine: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    """Stream one answer per prompt, all at once, without HTTP."""

    async def one(prompt: list[int]) -> float:
        first = 0.0
        stream = engine.astream({"prompt_token_ids": prompt}, max_tokens=tokens, **SAMPLING)
        async for _ in stream:
            first = first or time.perf_counter() - begin
        return first

    begin = time.perf_counter()
    firsts = await asyncio.gather(*map(one, prompts))
    return {"seconds": time.perf_counter() - begin, "first": firsts}


def sglang(channel: Channel, server_args: str) -> None:
    prepare()
    from sglang.srt.entrypoints.http_server import launch_server

    arguments = copy.copy(pickle.loads(base64.b64decode(server_args)))
    arguments.port, arguments.nccl_port = free_port(), free_port()
    arguments.host, arguments.skip_tokenizer_init = "127.0.0.1", False
    url = f"http://127.0.0.1:{arguments.port}"
    threading.Thread(target=conduct, args=(channel, url), daemon=True).start()
    launch_server(arguments)


def conduct(channel: Channel, url: str) -> None:
    """Report when the server is ready, and end it with its conductor."""
    import httpx

    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        time.sleep(1)
        try:
            if httpx.get(f"{url}/health_generate", timeout=60).status_code == 200:
                break
        except httpx.HTTPError:
            continue
    channel.send({"url": f"{url}/v1"})
    for _ in channel.jobs():
        pass
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


# The table


def show(report: dict[str, Any]) -> None:
    about, console = report["machine"], Console(width=140)
    table = Table(title=f"streams of {report['tokens']} tokens, {about['cpu']}")
    headings = (
        "clients",
        *CONTESTANTS,
        "served/in process",
        "served/sglang",
        "first token/sglang's",
        "CPU s, served, in process",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for count, found in report["clients"].items():
        rates = {name: each["rate"] for name, each in found.items()}
        table.add_row(
            count,
            *(f"{statistics.median(rates[name]):.1f}" for name in CONTESTANTS),
            quartiles(ratios(rates["served"], rates["in process"])),
            quartiles(ratios(rates["served"], rates["sglang"])),
            quartiles(ratios(found["served"]["first"], found["sglang"]["first"])),
            ", ".join(f"{statistics.median(found[n]['cpu']):.2f}" for n in CONTESTANTS[:2]),
        )
    console.print(table)
    console.print(footer(about))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contestant"]:
        perform = globals()[sys.argv[2]]
        perform(Channel(), **json.loads(sys.argv[3]))
    else:
        typer.run(main)
