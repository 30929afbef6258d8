"""Whatever schema, pattern, list of tools or nested JSON a client sends, others are answered
meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from _inf.apps.serve import app, connections, responses
from _inf.apps.serve.bodies import read_body
from _inf.backends.openai.http import httpx
from tests.support.grammars import HOSTILE_SCHEMAS
from tests.support.serve_clients import CHAT, Http, user

# A second where nothing else runs. A request that holds the interpreter takes minutes to days.
HEALTH_SECONDS = 5.0


@pytest.fixture(scope="module")
def client(caller_server):
    return Http(caller_server).client


def chat(**more: Any) -> bytes:
    return json.dumps({"messages": [user("Hi")], "max_tokens": 2, **more}).encode()


def forced(*schemas: Any) -> bytes:
    """A request that must call one of these tools."""
    functions = [{"name": f"f{n}", "parameters": schema} for n, schema in enumerate(schemas)]
    tools = [{"type": "function", "function": function} for function in functions]
    return chat(tools=tools, tool_choice="required")


def nested(depth: int) -> Any:
    inner = {}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}}
    return inner


DOUBLED = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(24)}
EXPANDING = {"$defs": {"a24": {"type": "integer"}, **DOUBLED}, "$ref": "#/$defs/a0"}
# They are made when they are sent: some have megabytes. What else a schema or a regex can cost is
# in tests/request/test_grammar.py.
BODIES = {
    "paths of a gigabyte": lambda: forced(HOSTILE_SCHEMAS["paths of a gigabyte"]),
    "names that may come": lambda: forced(HOSTILE_SCHEMAS["30,000 names that may come"]),
    "references of a tool that double": lambda: forced(EXPANDING),
    "3,000 tools of which one is called": lambda: forced(*[{}] * 3_000),
    "parameters 150 deep": lambda: forced(nested(75)),
    "a hundred choices of 10,000 letters": lambda: chat(
        structured_outputs={"choice": ["a" * 10_000] * 100}
    ),
    "an unknown field of 1,000,000 letters": lambda: chat(**{"x" * 1_000_000: 1}),
    "2,000,000 wrong messages": lambda: chat(messages=[1] * 2_000_000),
    "1,000,000 unknown fields": lambda: chat(**{str(n): 1 for n in range(1_000_000)}),
    "steps with 300 decimal places": lambda: chat(
        json_schema={"prefixItems": [{"multipleOf": float(f"{n}e-300")} for n in range(1, 1_900)]}
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_health_is_answered_while_a_costly_request_is(name, client, caller_server):
    health, slowest = Http(caller_server).client, 0.0
    with ThreadPoolExecutor(1) as threads:
        costly = threads.submit(client.post, CHAT, content=BODIES[name]())
        while not costly.done():
            start = time.monotonic()
            assert health.get("/health").status_code == httpx.codes.OK
            slowest = max(slowest, time.monotonic() - start)
    assert not costly.result().is_server_error and slowest < HEALTH_SECONDS


def test_bodies_are_read_beside_the_loop_that_answers(client, monkeypatch):
    """Of each route that has one: `json` and pydantic take a second for 16 MiB."""
    loops = []

    def read(form: type[Any], body: bytes) -> Any:
        loops.append(asyncio._get_running_loop())
        return read_body(form, body)

    for module in (connections, responses):
        monkeypatch.setattr(module, "read_body", read)
    paths = [*app.ANSWERS, *app.TOLD, "/sessions", "/sessions/a/reward"]
    statuses = [client.post(path, content=b"{}").status_code for path in paths]
    assert statuses == [httpx.codes.BAD_REQUEST] * len(paths)
    assert loops == [None] * len(paths)


def test_other_threads_run_while_a_long_response_is_written():
    """`json.dumps` holds the interpreter for all of it."""
    choices = [{"index": n, "token_ids": [*range(50)]} for n in range(20_000)]
    with ThreadPoolExecutor(1) as threads:
        written, turns = threads.submit(responses.response_text, {"choices": choices}), 0
        while not written.done():
            time.sleep(0.001)
            turns += 1
    assert turns > 10 and json.loads(written.result()) == {"choices": choices}
