"""Whatever schema, pattern, list of tools or nested JSON a client sends, others are answered
meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.apps.serve import app, responses, translated_responses
from _inf.apps.serve.bodies import read_body
from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from tests.support.grammars import HOSTILE_REGEXES, HOSTILE_SCHEMAS

pytestmark = pytest.mark.engine
# A second where nothing else runs. A request that holds the interpreter takes minutes to days.
HEALTH_SECONDS = 5.0
REQUEST_SECONDS = 120.0
INTERNAL_ERROR = 500
HI = [{"role": "user", "content": "Hi"}]


class Pulse:
    """Asks for `/health` all the time; `longest`: seconds that an answer took."""

    def __init__(self, server: InferenceServer) -> None:
        self.base = server.base_url.removesuffix("/v1")
        self.longest, self.answers = 0.0, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        with httpx.Client(base_url=self.base, timeout=REQUEST_SECONDS) as http:
            while not self._end.wait(0.02):
                start = time.monotonic()
                assert http.get("/health").status_code == httpx.codes.OK
                self.longest = max(self.longest, time.monotonic() - start)
                self.answers += 1

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._end.set()
        self._thread.join(REQUEST_SECONDS)


@pytest.fixture(scope="module")
def http(caller_server: InferenceServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=caller_server.base_url, timeout=REQUEST_SECONDS) as client:
        yield client


def send(http: httpx.Client, server: InferenceServer, body: bytes) -> httpx.Response:
    """Send it, while `/health` is asked; it is answered or refused."""
    with Pulse(server) as pulse:
        response = http.post("/chat/completions", content=body)
        while not pulse.answers:
            time.sleep(0.01)
    assert response.status_code < INTERNAL_ERROR, response.text[:300]
    assert pulse.longest < HEALTH_SECONDS
    return response


def chat(**more: Any) -> bytes:
    return json.dumps({"messages": HI, "max_tokens": 2, **more}).encode()


def tool(parameters: Any, name: str = "f") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def nested(depth: int) -> Any:
    inner: Any = {}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}}
    return inner


DOUBLED: Any = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(24)}
EXPANDING = {"$defs": {"a24": {"type": "integer"}, **DOUBLED}, "$ref": "#/$defs/a0"}
# They are made when they are sent: some have megabytes.
BODIES: dict[str, Callable[[], bytes]] = {
    **{
        f"json_schema: {name}": partial(chat, json_schema=each)
        for name, each in HOSTILE_SCHEMAS.items()
    },
    **{f"regex: {name}": partial(chat, regex=each) for name, each in HOSTILE_REGEXES.items()},
    **{
        f"tool, {choice}: {name}": partial(chat, tools=[tool(each)], tool_choice=choice)
        for name, each in HOSTILE_SCHEMAS.items()
        for choice in ("auto", "required")
    },
    "references of a tool that double": lambda: chat(
        tools=[tool(EXPANDING)], tool_choice="required"
    ),
    "a hundred choices of 10,000 letters": lambda: chat(
        structured_outputs={"choice": ["a" * 10_000] * 100}
    ),
    "3,000 tools of which one is called": lambda: chat(
        tools=[tool({}, f"f{n}") for n in range(3_000)], tool_choice="required"
    ),
    "a body 100,000 deep": lambda: b'{"a":' * 100_000,
    "parameters 150 deep": lambda: chat(tools=[tool(nested(75))], tool_choice="required"),
    "an unknown field of 1,000,000 letters": lambda: chat(**{"x" * 1_000_000: 1}),
    "an enum of 1,000,000 numbers": lambda: chat(json_schema={"enum": list(range(1_000_000))}),
    "a number of 100,000 digits": lambda: b'{"messages": [], "seed": ' + b"9" * 100_000 + b"}",
    "2,000,000 wrong messages": lambda: chat(messages=[1] * 2_000_000),
    "2,000,000 wrong stop strings": lambda: chat(stop=[1] * 2_000_000),
    "1,000,000 wrong biases": lambda: chat(logit_bias={str(n): "a" for n in range(1_000_000)}),
    "1,000,000 unknown fields": lambda: chat(**{str(n): 1 for n in range(1_000_000)}),
    "steps with 300 decimal places": lambda: chat(
        json_schema={"prefixItems": [{"multipleOf": float(f"{n}e-300")} for n in range(1, 1_900)]}
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_health_is_answered_while_a_costly_request_is(
    name: str, http: httpx.Client, caller_server: InferenceServer
) -> None:
    send(http, caller_server, BODIES[name]())


def test_bodies_are_read_beside_the_loop_that_answers(
    caller_server: InferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each route that has one: `json` and pydantic take a second for 16 MiB."""
    loops = []

    def read(form: type[Any], body: bytes) -> Any:
        loops.append(asyncio._get_running_loop())
        return read_body(form, body)

    for module in (app, responses, translated_responses):
        monkeypatch.setattr(module, "read_body", read)
    base = caller_server.base_url.removesuffix("/v1")
    paths = ["/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/generate"]
    paths += ["/v1/messages", "/v1/messages/count_tokens", "/v1/responses"]
    paths += ["/tokenize", "/detokenize", "/sessions", "/sessions/a/reward"]
    with httpx.Client(base_url=base, timeout=REQUEST_SECONDS) as http:
        statuses = [http.post(path, content=b"{}").status_code for path in paths]
    assert statuses == [httpx.codes.BAD_REQUEST] * len(paths)
    assert loops == [None] * len(paths)


def test_long_responses_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several choices: `json` holds the interpreter while it writes one value."""
    written = []

    def dumps(value: Any, **how: Any) -> str:
        written.append(value)
        return json.dumps(value, **how)

    monkeypatch.setattr(responses, "json", SimpleNamespace(dumps=dumps))
    choices = [{"n": n} for n in range(3)]
    for more in ({}, {"usage": 1}):
        text = responses.response_text({"id": "a"}, choices, more)
        assert text == json.dumps({"id": "a", "choices": choices, **more})
    assert written == [{"id": "a"}, {}, *choices, {"id": "a"}, {"usage": 1}, *choices]
