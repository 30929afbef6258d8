"""Sessions that are opened with a task, a rollout, parameters and limits."""

from __future__ import annotations

from typing import Any

import pytest

import inf
from _inf.apps.serve.server import InferenceServer
from inf import ConfigError, InferenceError
from tests.support.serve_clients import CHAT, COMPLETION, MESSAGES, Http, user

ONE = [user("One")]
WHOLE = {"max_tokens": 6, "return_token_ids": True, "ignore_eos": True}


@pytest.fixture
def server(tiny, tmp_path):
    with tiny.serve(traces=tmp_path / "traces.jsonl") as server:
        yield server


def opened(server: InferenceServer, name: str, **settings: Any) -> Http:
    server.session(name, **settings)
    return Http(server, name)


def ids_of(http: Http, **params: Any) -> list[int]:
    [choice] = http.post(CHAT, **{"messages": ONE, **WHOLE, **params})["choices"]
    ids = choice["token_ids"]
    return ids


def test_sessions_parameters_replace_those_of_its_requests(tiny, server):
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 5}
    greedy = {"temperature": 0.0, "do_sample": False, "ignore_eos": False}
    ids = ids_of(opened(server, "pinned", sampling=sampling), **greedy)
    assert [ids] == tiny.generate([ONE], **sampling).token_ids
    assert ids != ids_of(Http(server), **greedy)


def test_traces_have_the_names_of_their_session(server, tmp_path):
    names = {"task": "sums", "rollout": "7"}
    made = Http(server).post("/sessions", name="sub-agent", **names)
    assert made == {"session": "sub-agent", "path": "/sessions/sub-agent/v1"}
    agent = opened(server, "agent", **names)
    for http in (agent, Http(server, "sub-agent")):
        ids_of(http)
    agent.post("/reward", reward=0.5)
    traces = [*server.traces("agent"), *server.traces("sub-agent")]
    assert [(trace.task, trace.rollout) for trace in traces] == [("sums", "7")] * 2
    assert inf.load_traces(tmp_path / "traces.jsonl") == traces


def ended(http: Http, limit: str, most: int, **more: Any) -> None:
    error = http.post(CHAT, 400, messages=ONE, **more)["error"]
    assert f"its {limit} of {most} is reached" in error["message"] and error["code"] == "length"


def test_session_ends_after_its_last_turn_or_token(server):
    http = opened(server, "turns", max_turns=2)
    for _ in range(2):
        ids_of(http)
    ended(http, "max_turns", 2)
    assert [trace.limit for trace in server.traces("turns")] == ["max_turns"] * 2
    http = opened(server, "tokens", max_tokens=10)
    assert [len(ids_of(http)) for _ in range(2)] == [6, 4]
    ended(http, "max_tokens", 10, stream=True)
    assert server.traces("tokens")[0].limit == "max_tokens"
    http = opened(server, "messages", sampling={"ignore_eos": True}, max_tokens=4)
    answer = http.post(MESSAGES, messages=ONE, max_tokens=50)
    assert answer["stop_reason"] == "max_tokens" and answer["usage"]["output_tokens"] == 4


def test_limits_count_every_choice_of_every_prompt(server):
    http = opened(server, "shared", max_tokens=10, max_turns=5)
    body = {"prompt": [[5, 6], [7, 8]], "n": 2, **WHOLE}
    assert http.post(COMPLETION, **body)["usage"]["completion_tokens"] == 8  # 10 // 4 each
    refused = http.post(COMPLETION, 400, **body | {"n": 1})["error"]
    assert "its max_turns is 5, with 1 left" in refused["message"]
    last = http.post(COMPLETION, **body | {"prompt": [5, 6], "n": 1})
    assert last["usage"]["completion_tokens"] == 2
    assert {trace.limit for trace in server.traces("shared")} == {None}
    refused = opened(server, "few", max_tokens=3).post(COMPLETION, 400, **body)["error"]
    assert (
        "its max_tokens is 3, with 3 left, and the request asks for 4 answers" in refused["message"]
    )


def test_fields_of_sessions_count_as_memory_and_no_session_is_opened_again(server, monkeypatch):
    monkeypatch.setattr("_inf.apps.serve.open_sessions.MAX_BYTES", 100_000)
    for settings in (
        {"task": "x" * 60_000},
        {"sampling": {"stop": ["x" * 600] * 100}},
        {"sampling": {"stop_token_ids": [*range(300, 360)] * 60}},
    ):
        http = opened(server, "a", **settings)
        with pytest.raises(InferenceError, match="hold 100000 bytes"):
            server.session("b")
        with pytest.raises(InferenceError, match="'a' is open already; delete it first"):
            server.session("a")
        http.delete()


def test_wrong_setting_is_refused_by_its_key(server):
    for settings, key in (
        ({"max_turns": 0}, "max_turns"),
        ({"sampling": {"temprature": 1}}, "sampling.temprature"),
        ({"sampling": {"tools": []}}, "sampling.tools"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature"),
    ):
        with pytest.raises(ConfigError, match=key) as refused:
            server.session("wrong", **settings)
        assert refused.value.key == key and server.sessions() == []
        refusal = Http(server).post("/sessions", 400, name="wrong", **settings)
        assert key in refusal["error"]["message"]
