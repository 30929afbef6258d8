"""Sessions that are opened with a task, a rollout, parameters and limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import inf
from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import ConfigError, InferenceEngine, InferenceError
from tests.support.serve_clients import client

pytestmark = pytest.mark.engine
ONE = [{"role": "user", "content": "One"}]


@pytest.fixture
def server(tiny: InferenceEngine, tmp_path: Path) -> Iterator[InferenceServer]:
    with tiny.serve(traces=tmp_path / "traces.jsonl") as server:
        yield server


def ask(url: str, server: InferenceServer, messages: Any = ONE, **params: Any) -> Any:
    params = {"max_tokens": 6, "extra_body": {"return_token_ids": True}} | params
    connected = client(server, base_url=url)
    [model] = connected.models.list().data
    answer = connected.chat.completions.create(model=model.id, messages=messages, **params)
    return answer.choices[0]


def test_sessions_parameters_replace_those_of_its_requests(
    tiny: InferenceEngine, server: InferenceServer
) -> None:
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 5}
    url = server.session("pinned", sampling=sampling)
    greedy = {"temperature": 0.0, "extra_body": {"do_sample": False, "return_token_ids": True}}
    answer = ask(url, server, **greedy)
    assert [answer.token_ids] == tiny.generate([ONE], **sampling).token_ids
    assert answer.token_ids != ask(server.base_url, server, **greedy).token_ids


def test_traces_have_the_names_of_their_session(server: InferenceServer, tmp_path: Path) -> None:
    path = {"task": "sums", "rollout": "7"}
    root = server.base_url.removesuffix("/v1")
    made = httpx.post(f"{root}/sessions", json={"name": "sub-agent", **path})
    assert made.json() == {"session": "sub-agent", "path": "/sessions/sub-agent/v1"}
    for url in (server.session("agent", **path), root + made.json()["path"]):
        ask(url, server)
    traces = [*server.traces("agent"), *server.traces("sub-agent")]
    assert [(trace.task, trace.rollout) for trace in traces] == [("sums", "7")] * 2
    httpx.post(f"{root}/sessions/agent/reward", json={"reward": 0.5}).raise_for_status()
    assert inf.load_traces(tmp_path / "traces.jsonl") == [
        *server.traces("agent"),
        *server.traces("sub-agent"),
    ]


def test_session_ends_after_its_last_turn(server: InferenceServer) -> None:
    url = server.session("turns", max_turns=2)
    for _ in range(2):
        ask(url, server)
    with pytest.raises(openai.BadRequestError, match="its max_turns of 2 is reached") as refused:
        ask(url, server)
    assert refused.value.code == "length"
    assert [trace.limit for trace in server.traces("turns")] == ["max_turns"] * 2


def test_session_ends_after_its_last_token(server: InferenceServer) -> None:
    url = server.session("tokens", max_tokens=10)
    whole = {"extra_body": {"ignore_eos": True, "return_token_ids": True}}
    answers = [ask(url, server, **whole) for _ in range(2)]
    assert [len(answer.token_ids) for answer in answers] == [6, 4]
    assert answers[1].finish_reason == "length"
    with pytest.raises(openai.BadRequestError, match="its max_tokens of 10 is reached"):
        ask(url, server, stream=True)
    assert server.traces("tokens")[0].limit == "max_tokens"


def test_limits_count_every_choice_of_every_prompt(server: InferenceServer) -> None:
    url, whole = server.session("shared", max_tokens=10, max_turns=5), {"ignore_eos": True}
    body = {"prompt": [[5, 6], [7, 8]], "n": 2, "max_tokens": 6, **whole}
    answer = httpx.post(f"{url}/completions", json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] == 8  # 10 // 4 each
    for more, limit in (({"n": 1}, "1 of its max_turns of 5"), ({"n": 3}, "1 of its max_turns")):
        refused = httpx.post(f"{url}/completions", json=body | more, timeout=60)
        assert refused.status_code == 400 and limit in refused.json()["error"]["message"]
    one = {"prompt": [5, 6], "n": 1}
    last = httpx.post(f"{url}/completions", json=body | one, timeout=60).json()
    assert last["usage"]["completion_tokens"] == 2
    assert {trace.limit for trace in server.traces("shared")} == {None}
    url = server.session("few", max_tokens=3)
    refused = httpx.post(f"{url}/completions", json=body, timeout=60)
    assert "3 of its max_tokens of 3 are left, for 4 answers" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "x" * 60_000},
        {"rollout": "x" * 60_000},
        {"sampling": {"stop": ["x" * 600] * 100}},
        {"sampling": {"stop_token_ids": [*range(300, 360)] * 30}},
    ],
)
def test_fields_of_sessions_count_as_memory(
    settings: Any, server: InferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("_inf.apps.serve.sessions.MAX_BYTES", 100_000)
    for name in "ab":
        server.session(name, **settings)
    with pytest.raises(InferenceError, match="hold 100000 bytes"):
        server.session("c", **settings)


def test_messages_cut_by_the_sessions_limit_say_max_tokens(server: InferenceServer) -> None:
    url = server.session("messages", sampling={"ignore_eos": True}, max_tokens=4)
    answer = httpx.post(f"{url}/messages", json={"messages": ONE, "max_tokens": 50}).json()
    assert answer["stop_reason"] == "max_tokens" and answer["usage"]["output_tokens"] == 4


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"task": ""}, "task"),
        ({"rollout": 7}, "rollout"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"sampling": [1]}, "sampling"),
        ({"sampling": {"temprature": 1}}, "sampling.temprature"),
        ({"sampling": {"tools": []}}, "sampling.tools"),
        ({"sampling": {"temperature": -1}}, "sampling"),
    ],
)
def test_wrong_setting_is_refused_by_its_key(
    server: InferenceServer, settings: Any, key: str
) -> None:
    with pytest.raises(ConfigError, match=key) as refused:
        server.session("wrong", **settings)
    assert str(refused.value.key).startswith(key) and server.sessions() == []
    answer = httpx.post(
        f"{server.base_url.removesuffix('/v1')}/sessions", json={"name": "wrong", **settings}
    )
    assert answer.status_code == 400 and key in answer.json()["error"]["message"]


def test_open_session_is_not_opened_again(server: InferenceServer) -> None:
    server.session("one", task="sums")
    with pytest.raises(InferenceError, match="'one' is open already; delete it first"):
        server.session("one")
    httpx.delete(server.session_url("one").removesuffix("/v1")).raise_for_status()
    server.session("one")
    with pytest.raises(ConfigError, match="its name has letters"):
        server.session("a b")
