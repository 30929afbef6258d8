"""What goes wrong between the backend and a server: one exception each, in one sentence."""

from __future__ import annotations

import time
from typing import Any

import pytest

from _inf.errors import RequestFailure
from inf import ConfigError, EngineDeadError, InferenceEngine, PromptError
from tests.support import scripted_server
from tests.support.refusals import refused
from tests.support.scripted_server import Reply, ScriptedServer, call, chat, echo, streamed

KEY = "sk-very-secret-0123456789"


def connected(server: ScriptedServer, retries: int = 1, **config: Any) -> InferenceEngine:
    """An engine whose client repeats a request only so often, so that a test is quick."""
    engine = scripted_server.connected(server, **config)
    engine._backend.server.client.max_retries = retries  # type: ignore[attr-defined]
    return engine


def answering(server: ScriptedServer, reply: Reply) -> None:
    """Let the server answer all that is posted so."""
    server.script = lambda path, body: reply if body else echo(path, body)


# The key.


def test_key_of_the_named_variable_is_sent_and_no_other(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with connected(server) as engine:
        engine.generate("a")
    assert not any("authorization" in seen.headers for seen in server.seen)
    server.seen.clear()
    with refused(ConfigError, "variable SERVER_KEY is not set", key="api_key_env"):
        connected(server, api_key_env="SERVER_KEY")
    monkeypatch.setenv("SERVER_KEY", f"{KEY}\nX-Other: 1")
    with refused(ConfigError, "SERVER_KEY has characters", key="api_key_env") as caught:
        connected(server, api_key_env="SERVER_KEY")
    assert KEY not in str(caught.value) and server.seen == []
    monkeypatch.setenv("SERVER_KEY", "another\n")
    with connected(server, api_key_env="SERVER_KEY") as engine:
        engine.generate("a")
    assert server.seen[-1].headers["authorization"] == "Bearer another"


@pytest.mark.parametrize(
    ("status", "at_start", "variable"),
    [(401, True, "SERVER_KEY"), (403, False, "SERVER_KEY"), (401, True, None), (401, False, None)],
)
def test_refused_key_names_the_variable_and_never_the_key(
    server, monkeypatch, status, at_start, variable
):
    monkeypatch.setenv("SERVER_KEY", KEY)
    reply = Reply({"error": {"message": f"Incorrect API key: {KEY}"}}, status=status)
    server.script = lambda path, body: reply if at_start or body else echo(path, body)
    says = f"SERVER_KEY.*{status}" if variable else "asks for a key; name the environment"
    with refused(ConfigError, says, key="api_key_env") as caught:
        with connected(server, api_key_env=variable) as engine:
            engine.generate("a", tools=[_tool])
    assert KEY not in str(caught.value)
    assert len(server.bodies) == (0 if at_start else 1)  # not tried again


def _tool(x: str) -> str:
    """
    Does nothing.

    Args:
        x: Anything.
    """
    return x


# What the server refuses.


@pytest.mark.parametrize(
    ("status", "body", "about"),
    [
        (400, {"message": "No.", "param": "temperature"}, {"key": "temperature"}),
        (400, {"message": "No.", "param": "messages[0].role"}, {"index": 1}),
        (400, {"message": "No.", "code": "context_length_exceeded"}, {"index": 1}),
        # Other servers' forms.
        (422, [{"error": {"message": "No."}}], {"index": 1}),
        (400, {"detail": [{"msg": "No."}]}, {"index": 1}),
        (404, {"message": "No model."}, {}),
    ],
)
def test_what_the_server_refuses_is_said_in_its_words(server, status, body, about):
    reply = Reply({"error": body} if "message" in list(body) else body, status)
    server.script = lambda path, sent: (
        reply if sent and "b" in str(sent["messages"]) else echo(path, sent)
    )
    with connected(server) as engine:
        kind = PromptError if "index" in about else ConfigError
        with refused(kind, rf"\({status}\): .*No", **about):
            engine.generate(["a", "b"])
    assert sum("b" in str(sent["messages"]) for sent in server.bodies) == 1  # not tried again


@pytest.mark.parametrize("status", [429, 503])
def test_request_that_stays_unanswered_is_a_failure_of_that_row(server, status):
    """The client waits as long as the server says."""
    wait = {"retry-after-ms": "300"}
    answering(server, Reply({"error": {"message": "Busy."}}, status=status, headers=wait))
    with connected(server, retries=2) as engine:
        with refused(RequestFailure, rf"\({status}\): Busy", index=0):
            engine.generate("a")
        first, second, _ = [seen.at for seen in server.seen if seen.body]
        assert second - first >= 0.3
        server.script = echo
        assert engine.generate("a").completions == ["A"]


# Answers that are none.


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(b'{"choices": [{"mess'), "sent what is not JSON"),
        (Reply(b"<html>", headers={"content-type": "text/html"}), "unknown form: '<html>'"),
        (Reply({"object": "list"}), "unknown form"),
        (Reply({"choices": [{"message": {"content": {"x": 1}}}]}), "unknown form"),
        (Reply({}, wait=3), "hang_timeout"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_broken_answer_and_silence_are_a_failure_of_that_row(server, reply, message):
    with connected(server, retries=0, hang_timeout=1) as engine:
        answering(server, reply)
        with pytest.raises(RequestFailure, match=f"^prompt 0: .*{message}"):
            engine.generate("a")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (streamed("ab", finish=None, done=False), "in the middle of the answer"),
        (streamed("ab", finish=None), "in the middle of the answer"),
        (Reply(events=[{"error": {"message": "Overloaded."}}]), "with an error: Overloaded"),
        (Reply(events=["hi"]), "unknown form"),
        (Reply({"choices": []}), "in the middle of the answer"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_broken_stream_gives_what_came_and_then_a_failure(server, reply, message):
    answering(server, reply)
    with connected(server) as engine:
        text = ""
        with pytest.raises(RequestFailure, match=message):
            for chunk in engine.stream("a"):
                text += chunk.text
        assert text == ("ab" if message.startswith("in the middle") and reply.events else "")


def test_failed_turn_with_tools_ends_its_row_only(server):
    def script(path: str, body: Any) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return Reply({"error": {"message": "Bad."}}, status=400)
        asked = body["messages"][0]["content"]
        return chat(None, [call("_tool", '{"x": "1"}')]) if asked == "b" else chat("fine")

    with connected(server) as engine:
        server.script = script
        output = engine.generate(["a", "b"], tools=[_tool])
    assert output.completions == ["fine", ""]
    assert output[1].finish_reason == "abort" and "Bad" in output.metadata[1]["error"]


def test_server_that_is_not_there_is_one_sentence_and_later_calls_try_again(server):
    with connected(server) as engine:
        server.close()
        with pytest.raises(EngineDeadError, match=r"^No server answers at .*:\d+/v1 \("):
            engine.generate(["a", "b"])
        assert not engine.dead
    with pytest.raises(EngineDeadError):
        connected(server)


def test_no_more_requests_are_under_way_than_max_num_seqs(server):
    running = most = 0

    def script(path: str, body: Any) -> Reply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.02 if body else 0)
        running -= 1
        return echo(path, body)

    server.script = script
    with connected(server, rollout={"max_num_seqs": 3}) as engine:
        output = engine.generate([f"a{number}" for number in range(30)])
    assert output.completions == [f"A{number}" for number in range(30)] and most == 3
