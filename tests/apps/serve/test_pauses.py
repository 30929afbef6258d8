"""An engine is paused over HTTP by vLLM's routes, also by an engine that is a client of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from _inf.apps.serve.app import Service, create_app
from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import RunningRow, begun, running, stand_still
from tests.support.serve_clients import COMPLETION
from tests.support.tiny import tiny_model

PROMPTS = as_ids(token_prompts(2, longest=40, seed=50))
GREEDY = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _goes_on(tiny):
    yield
    tiny.resume()


def test_paused_rows_end_and_requests_wait(tiny, http):
    def ask() -> Any:
        ids = PROMPTS[0]["prompt_token_ids"]
        return http.post(COMPLETION, prompt=ids, return_token_ids=True, **GREEDY)["choices"][0]

    expected = ask()
    assert expected["weight_versions"] == [[0, 0]]
    [row] = running(tiny, PROMPTS[1:], 5, **GREEDY)
    assert http.post("/pause") == {"status": "paused"}
    assert row.end(10).finish_reason == "abort" and http.get("/is_paused") == {"is_paused": True}
    later = begun(ask)
    assert http.post("/reset_prefix_cache") == {"success": True}
    assert not later.done()
    assert http.post("/resume") == {"status": "resumed"}
    assert later.result(60)["token_ids"] == expected["token_ids"]


@pytest.mark.verl  # hf keeps no prefixes between calls
def test_pause_empties_the_prefix_cache(http):
    def cached() -> int:
        ids = PROMPTS[0]["prompt_token_ids"]
        usage = http.post(COMPLETION, prompt=ids, max_tokens=1)["usage"]
        return (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    assert [cached(), cached()][1] > 0
    http.post("/pause")
    http.post("/resume")
    assert cached() == 0


def test_client_pauses_its_server(tiny, tiny_server):
    folder, prompts = str(tiny_model()), tiny.model.limits.prompt
    rollout = {"name": "openai", "prompt_length": prompts, "response_length": 200}
    address = {"base_url": tiny_server.base_url, "model_path": folder, "tokenizer_path": folder}
    with InferenceEngine(rollout=rollout, **address) as remote:
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
        metadata = rows[0].chunks[-1].metadata
        assert metadata is not None and metadata["weight_versions"] == [(0, 0)]
        assert remote.generate(PROMPTS, **GREEDY).token_ids == expected


def test_wrong_parameters_are_refused_by_name(tiny, http):
    for path in ("/pause?mode=later", "/pause?clear_cache=1", "/resume?mode=keep"):
        error = http.post(path, 400)["error"]
        assert error["param"] == path.partition("?")[2].partition("=")[0]
    assert not tiny.paused


def test_other_machines_have_no_route_that_pauses(tiny):
    async def status(host: str) -> int:
        transport = httpx.ASGITransport(create_app(Service(tiny), host, "key"))
        headers = {"Authorization": "Bearer key"}
        async with httpx.AsyncClient(transport=transport, headers=headers) as http:
            return (await http.get("http://localhost/is_paused")).status_code

    assert [asyncio.run(status(host)) for host in ("127.0.0.1", "0.0.0.0")] == [200, 404]
