"""A server's manners: abandoned requests, death and restart, the end, totals, quiet streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import inf
from _inf.apps.serve.connections import EventStream
from _inf.apps.serve.keeper import EngineKeeper
from _inf.apps.serve.message_responses import MessagesResponses
from _inf.apps.serve.responses import ChatResponses
from _inf.apps.serve.server import InferenceServer, _listen
from _inf.backends.openai.http import httpx
from inf import EngineDeadError
from tests.support.schedulers import in_flight
from tests.support.scripts import START_SECONDS, until
from tests.support.serve_clients import COMPLETION, Http

GREEDY = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}
LONG = {"prompt": "Go on", "n": 4, **GREEDY}
ABORT_SECONDS = 6.0  # a request that is left alone takes longer


def raw_request(server: InferenceServer, stream: bool = False) -> socket.socket:
    """Send a request for a long answer, and do not read it."""
    asked = {"prompt": "Go on", "max_tokens": 3500, "ignore_eos": True, "stream": stream}
    url, body = httpx.URL(server.base_url), json.dumps(asked)
    connection = socket.create_connection((url.host, url.port))
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


def test_connections_send_each_event_at_once():
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("stream", [True, False])
def test_abandoned_request_is_aborted_in_the_engine(stream, mortal):
    with mortal.serve() as server:
        connections = [raw_request(server, stream) for _ in range(3)]
        assert until(lambda: in_flight(mortal) == 3, 30)
        if stream:
            assert connections[0].recv(64).startswith(b"HTTP/1.1 200")
        for connection in connections:
            connection.close()
        assert until(lambda: in_flight(mortal) == 0, ABORT_SECONDS)
        assert Http(server).get("/v1/models")["data"]


@pytest.mark.verl
def test_engine_that_dies_is_restarted_once(mortal, caplog):
    if mortal.weight_version:  # one whose weights were updated stays dead
        mortal.restart()
    ask = {"prompt": "Hi", "max_tokens": 2}
    with mortal.serve() as server, ThreadPoolExecutor(1) as threads:
        http = Http(server)
        before = http.post(COMPLETION, **ask)["choices"]
        waiting = threads.submit(http.send, COMPLETION, **{**LONG, "max_tokens": 3500, "n": 1})
        assert until(lambda: in_flight(mortal) == 1, 30)
        os.kill(mortal.rollout.host.children[0].pid, signal.SIGKILL)
        failed = waiting.result(60)
        assert failed.status_code == 503 and int(failed.headers["Retry-After"]) > 0
        assert failed.json()["error"]["type"] == "server_error"
        told = http.client.get("/health")
        assert (told.status_code, told.json()["status"]) == (503, "restarting")
        assert until(lambda: http.client.get("/health").status_code == 200, START_SECONDS)
        assert http.get("/health")["restarts"] == 1
        assert http.post(COMPLETION, **ask)["choices"] == before
    assert "restarted" in caplog.text


class Dead:
    """An engine that died, and what becomes of its restarts."""

    dead, closed, weight_version = True, False, 0

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.restarts = fails, 0

    def restart(self) -> None:
        self.restarts += 1
        if self.fails:
            raise EngineDeadError("It died while it started.")
        self.dead = False


def settled(keeper: EngineKeeper) -> str:
    assert until(lambda: keeper.status != "restarting", 10)
    return keeper.status


def test_engine_that_dies_is_restarted_again_once_it_has_answered():
    engine = Dead()
    keeper = EngineKeeper(engine)
    assert keeper.status == "restarting" and settled(keeper) == "ok"
    keeper.answered()
    engine.dead = True
    assert keeper.status == "restarting" and settled(keeper) == "ok"
    assert (engine.restarts, keeper.restarts) == (2, 2)
    engine.dead = True  # before an answer
    assert settled(keeper) == "dead" and engine.restarts == 2
    failing = Dead(fails=True)
    keeper = EngineKeeper(failing)
    assert keeper.status == "restarting" and settled(keeper) == "dead" == keeper.status
    assert failing.restarts == 1


def test_engine_with_updated_weights_or_shut_down_is_not_restarted():
    for change in ({"weight_version": 3}, {"closed": True}):
        engine = Dead()
        engine.dead = False
        keeper = EngineKeeper(engine)
        keeper.answered()  # by the first weights
        vars(engine).update(change, dead=True)
        assert settled(keeper) == "dead" and engine.restarts == 0


# ─── The end ───


def test_sigterm_finishes_what_is_under_way_and_exits_0(mortal, command, monkeypatch):
    """The command in this process, on an engine that runs."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(mortal))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url, asked = f"http://127.0.0.1:{port}", {**GREEDY, "max_tokens": 1500}
    begun, streamed = threading.Barrier(4), {"prompt": "Go on", "stream": True, **asked}

    def listens() -> bool:
        with contextlib.suppress(httpx.ConnectError):
            return bool(httpx.get(f"{url}/health").is_success)
        return False

    def read() -> str:
        with httpx.stream("POST", f"{url}{COMPLETION}", json=streamed) as answer:
            lines = filter(None, answer.iter_lines())
            parts = [next(lines)]
            begun.wait(60)
            parts += lines
        choices = [json.loads(part.removeprefix("data: "))["choices"] for part in parts[:-1]]
        return "".join(choice["text"] for [choice] in choices)

    def ask_and_end() -> list[str]:
        try:
            assert until(listens, 30)
            answers = [threads.submit(read) for _ in range(3)]
            begun.wait(60)
            assert not any(each.done() for each in answers)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
        return [each.result(60) for each in answers]

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with ThreadPoolExecutor(4) as threads:
            asking = threads.submit(ask_and_end)
            assert command("serve", "--port", port)[0] == 0
            said = asking.result()
        assert said == mortal.generate([{"text": "Go on"}] * 3, **asked).completions
    finally:
        signal.signal(signal.SIGTERM, before)


def test_requests_beyond_the_limit_are_aborted_at_the_end(mortal, monkeypatch):
    monkeypatch.setattr("_inf.apps.serve.server.FINISH_SECONDS", 1)
    with mortal.serve() as server:
        connection = raw_request(server)
        assert until(lambda: in_flight(mortal) == 1, 30)
        begin = time.monotonic()
    assert until(lambda: in_flight(mortal) == 0, ABORT_SECONDS)
    assert time.monotonic() - begin < 30
    connection.close()
    assert mortal.generate("Hi", max_tokens=1).token_ids


# ─── Totals ───


def test_metrics_count_requests_tokens_and_what_runs(http):
    assert http.get("/version") == {"version": inf.__version__}

    def totals() -> dict[str, float]:
        pairs = [line.rsplit(" ", 1) for line in http.client.get("/metrics").text.splitlines()]
        return {name: float(value) for name, value in pairs if not name.startswith("#")}

    before = totals()
    http.post(COMPLETION, prompt="Hi", max_tokens=5, n=2)
    after = totals()
    asked = 'inf_http_requests_total{route="/v1/completions",status="200"}'
    assert after[asked] == before.get(asked, 0) + 1
    assert after["inf_completion_tokens_total"] - before["inf_completion_tokens_total"] <= 10
    assert after["inf_rows_total"] == before["inf_rows_total"] + 2
    assert after["inf_http_requests_running"] == 1  # the scrape itself
    assert {"inf_prompt_tokens_total", "inf_cached_tokens_total", "inf_restarts_total"} <= set(
        after
    )


# ─── Streams of events on a connection, without a server ───

PING = 0.05  # seconds


def sent(*waits: float, ping: str = ": ping\n\n") -> list[dict[str, Any]]:
    """What a stream sends whose events come after so many seconds each."""
    found = []

    async def events() -> AsyncGenerator[str, None]:
        for number, wait in enumerate(waits):
            await asyncio.sleep(wait)
            yield f"data: {number}\n\n"

    async def send(message: Any) -> None:
        found.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def answer() -> None:
        await EventStream("data: first\n\n", events(), {}, ping)({"type": "http"}, receive, send)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(answer())
    return found


@pytest.mark.parametrize("kind", [ChatResponses, MessagesResponses])
def test_stream_pings_while_it_holds_back(kind, monkeypatch):
    monkeypatch.setattr("_inf.apps.serve.connections.PING_SECONDS", PING)
    start, first, one, *rest, two, end = sent(0, PING * 10, ping=kind.ping)
    assert start["type"] == "http.response.start"
    assert [each["body"] for each in (first, one, two)] == [
        *(b"data: first\n\n", b"data: 0\n\n", b"data: 1\n\n")
    ]
    assert len(rest) >= 2 and {each["body"] for each in rest} == {kind.ping.encode()}
    assert end == {"type": "http.response.body", "body": b"", "more_body": False}
