"""An engine is paused over HTTP by vLLM's routes, also by an engine that is a client of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from _inf.apps.serve.app import Service, create_app
from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import RunningRow, begun, running, stand_still
from tests.support.serve_clients import client
from tests.support.tiny import tiny_model

PROMPTS = as_ids(token_prompts(2, longest=40, seed=50))
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _goes_on(tiny: InferenceEngine) -> Iterator[None]:
    yield
    tiny.resume()


@pytest.fixture
def remote(tiny: InferenceEngine, tiny_server: InferenceServer) -> Iterator[InferenceEngine]:
    """An engine on the server of the other one."""
    folder = str(tiny_model())
    limits = tiny.model.limits
    rollout = {"name": "openai", "prompt_length": limits.prompt, "response_length": 200}
    address = {"base_url": tiny_server.base_url, "model_path": folder, "tokenizer_path": folder}
    with InferenceEngine(rollout=rollout, **address) as engine:
        yield engine


def posted(server: InferenceServer, path: str) -> tuple[int, Any]:
    answer = httpx.post(server.base_url.removesuffix("/v1") + path, timeout=60)
    return answer.status_code, answer.json()


def is_paused(server: InferenceServer) -> Any:
    return httpx.get(server.base_url.removesuffix("/v1") + "/is_paused").json()


def test_paused_rows_end_or_go_on_and_requests_wait(
    tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    openai, model = client(tiny_server), str(tiny.config.model_name)
    sent = {"return_token_ids": True, "ignore_eos": True}

    def ask() -> Any:
        asked: dict[str, Any] = {"prompt": PROMPTS[0]["prompt_token_ids"], "max_tokens": 200}
        answer = openai.completions.create(model=model, temperature=0, extra_body=sent, **asked)
        return answer.choices[0]

    expected = ask()
    assert is_paused(tiny_server) == {"is_paused": False}
    [row] = running(tiny, PROMPTS[1:], 5, **GREEDY)
    under_way = begun(ask)
    assert posted(tiny_server, "/pause?mode=keep") == (200, {"status": "paused"})
    assert is_paused(tiny_server) == {"is_paused": True} and stand_still([row], 0.1)
    assert posted(tiny_server, "/resume") == (200, {"status": "resumed"})
    assert under_way.result(60).token_ids == expected.token_ids
    assert expected.weight_versions == [[0, 0]]

    [row] = running(tiny, PROMPTS[1:], 5, **GREEDY)
    assert posted(tiny_server, "/pause")[0] == 200
    assert row.end(10).finish_reason == "abort"
    later = begun(ask)
    assert posted(tiny_server, "/reset_prefix_cache") == (200, {"success": True})
    assert not later.done() and posted(tiny_server, "/resume")[0] == 200
    assert later.result(60).token_ids == expected.token_ids


def test_client_pauses_its_server(tiny: InferenceEngine, remote: InferenceEngine) -> None:
    assert "pause" in remote.supports and not remote.paused
    expected = [RunningRow(remote, prompt, **GREEDY).end().token_ids for prompt in PROMPTS]
    rows = running(remote, PROMPTS, 5, **GREEDY)
    remote.pause("keep")
    assert remote.paused and tiny.paused and stand_still(rows, 0.2)
    remote.reset_prefix_cache()
    remote.resume()
    assert not tiny.paused and [row.end(60).token_ids for row in rows] == expected
    rows = running(remote, PROMPTS, 5, **GREEDY)
    remote.pause("abort")
    for row, ids in zip(rows, expected, strict=True):
        assert row.end(10).finish_reason == "abort"
        assert row.token_ids == ids[: len(row.token_ids)]
    remote.resume()
    [chunk] = [each.chunks[-1] for each in rows[:1]]
    assert chunk.metadata is not None and chunk.metadata["weight_versions"] == [(0, 0)]
    assert remote.generate(PROMPTS, **GREEDY).token_ids == expected


def test_wrong_parameters_are_refused_by_name(
    tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    for path, name in (
        ("/pause?mode=later", "mode"),
        ("/pause?clear_cache=1", "clear_cache"),
        ("/resume?mode=keep", "mode"),
    ):
        status, answer = posted(tiny_server, path)
        assert (status, answer["error"]["param"]) == (400, name)
    assert not tiny.paused


def test_other_machines_have_no_route_that_pauses(tiny: InferenceEngine) -> None:
    async def status(host: str) -> int:
        transport = httpx.ASGITransport(create_app(Service(tiny), host, "key"))
        own = {"transport": transport, "base_url": "http://localhost"}
        async with httpx.AsyncClient(**own, headers={"Authorization": "Bearer key"}) as http:
            return (await http.get("/is_paused")).status_code

    assert [asyncio.run(status(host)) for host in ("127.0.0.1", "0.0.0.0")] == [200, 404]
