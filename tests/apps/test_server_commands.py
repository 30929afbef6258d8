"""The commands on a server that takes and gives text: `rollout.name: openai`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from tests.support.scripted_server import MODEL, Reply, ScriptedServer, call, chat, echo, scripted


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ScriptedServer]:
    monkeypatch.chdir(tmp_path)
    with scripted(echo) as server:
        yield server


def at(server: ScriptedServer) -> list[str]:
    """The options that name the server."""
    assignments = ["rollout.name=openai", f"model_path={MODEL}", f"base_url={server.base_url}"]
    return [word for each in assignments for word in ("--set", each)]


def test_prompt_is_answered_and_what_a_server_cannot_do_is_exit_code_2_or_1(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "hi", "--json", *at(server)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["completion"] == "HI" and row["completion_tokens"] == 3
    Path("in.jsonl").write_text('{"prompt": "a"}\n')
    for command, says in (
        (["ask", "hi", "--top-k", "4"], "top_k: the backend openai does not offer it"),
        (["check"], "rollout.name is openai, not verl's rollout"),
        (
            ["batch", "in.jsonl", "o.jsonl", "--workers", "2"],
            "--workers: they would all ask the one",
        ),
    ):
        assert main([*command, *at(server)]) == 2
        assert says in capsys.readouterr().err
    server.close()
    assert main(["ask", "hi", *at(server)]) == 1
    assert "inf: No server answers at" in capsys.readouterr().err


def test_chat_streams_and_keeps_the_conversation(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n"))
    assert main(["chat", *at(server)]) == 0
    out, err = capsys.readouterr()
    assert out == "HELLO\n\nAGAIN\n"
    assert err.count("3 tokens, ") == 2 and "2 prompt tokens cached" in err
    said = [message["content"] for message in server.bodies[1]["messages"]]
    assert said == ["hello", "HELLO", "again"]


def test_batch_is_resumed_and_its_bad_lines_have_errors(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    openai = {"messages": [{"role": "user", "content": "c"}]}
    lines: list[Any] = [
        {"prompt": "a"},
        {"messages": [{"role": "user", "content": "b"}]},
        {"custom_id": "c", "body": openai},
        {"custom_id": "d", "body": {**openai, "logprobs": True}},
    ]
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def busy(path: str, body: Any) -> Reply:
        failing = body and body["messages"][0]["content"] == "b"
        return Reply({"error": {"message": "No b."}}, status=400) if failing else echo(path, body)

    server.script = busy
    command = ["batch", "in.jsonl", "out.jsonl", *at(server)]
    assert main(command) == 1
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert rows[0]["completion"] == "A" and rows[0]["usage"]["total_tokens"] == 10
    assert "No b" in rows[1]["error"]["message"]
    [choice] = rows[2]["response"]["body"]["choices"]
    assert choice["message"]["content"] == "C" and rows[2]["response"]["body"]["model"] == MODEL
    assert rows[3]["error"]["message"].startswith("body.logprobs: the server takes and gives text")
    sent = len(server.bodies)
    server.script = echo
    assert main(command) == 1  # because of the last line
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert rows[1]["messages"][-1]["content"] == "B" and len(server.bodies) == sent + 1
    assert "2 lines, 3 tokens" in capsys.readouterr().err


def test_reward_gets_all_text_after_the_prompt(server: ScriptedServer) -> None:
    def script(path: str, body: Any) -> Reply:
        if body and "tools" in body and body["messages"][-1]["role"] == "user":
            return chat("Let me see.", [call("double", '{"number": 4}')])
        return chat("It is 8.") if body and "tools" in body else echo(path, body)

    server.script = script
    Path("reward.py").write_text(
        "def length(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': 1.0, 'text': solution_str}\n"
    )
    data = [{"prompt": [{"role": "user", "content": "Twice 4?"}], "data_source": "x"}]
    address = {"base_url": server.base_url, "model_path": MODEL}
    with inf.InferenceEngine(**address, rollout={"name": "openai"}) as engine:
        plain = inf.evaluate(engine, data, reward="reward.py:length")
        tools = inf.evaluate(engine, data, reward="reward.py:length", tools=[double])
    assert plain.rows[0]["reward_extra"]["text"] == "TWICE 4?"
    assert tools.rows[0]["reward_extra"]["text"] == "Let me see.\n8\nIt is 8."


def double(number: int) -> str:
    """
    Doubles.

    Args:
        number: What to double.
    """
    return str(2 * number)
