"""The commands on a server that takes and gives text: `rollout.name: openai`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inf
from tests.support.json_lines import write
from tests.support.scripted_server import MODEL, Reply, ScriptedServer, call, chat, echo, scripted
from tests.support.tool_calling import calculator


@pytest.fixture
def server():
    with scripted(echo) as server:
        yield server


def at(server: ScriptedServer) -> list[str]:
    """The options that name the server."""
    assignments = ["rollout.name=openai", f"model_path={MODEL}", f"base_url={server.base_url}"]
    return [word for each in assignments for word in ("--set", each)]


def test_prompt_is_answered_and_what_a_server_cannot_do_is_exit_code_2_or_1(server, command):
    code, out, _ = command("ask", "hi", "--json", *at(server))
    row = json.loads(out)
    assert (code, row["completion"], row["completion_tokens"]) == (0, "HI", 3)
    write(Path("in.jsonl"), [{"prompt": "a"}])
    for words, says in (
        ("ask hi --top-k 4", "top_k: the backend openai does not offer it"),
        ("check", "rollout.name is openai, not verl's rollout"),
        ("batch in.jsonl o.jsonl --workers 2", "--workers: all workers would ask the same"),
    ):
        code, _, err = command(*words.split(), *at(server))
        assert code == 2 and says in err
    server.close()
    code, _, err = command("ask", "hi", *at(server))
    assert code == 1 and "inf: No server answers at" in err


def test_reward_gets_all_text_after_the_prompt(server):
    def script(path: str, body: Any) -> Reply:
        if body and "tools" in body and body["messages"][-1]["role"] == "user":
            return chat("Let me see.", [call("calculator", '{"expression": "2 * 4"}')])
        return chat("It is 8.") if body and "tools" in body else echo(path, body)

    server.script = script
    Path("reward.py").write_text(
        "def length(data_source, solution_str, ground_truth, extra_info):\n"
        "    return {'score': 1.0, 'text': solution_str}\n"
    )
    data = [{"prompt": "Twice 4?", "data_source": "x"}]
    address = {"base_url": server.base_url, "model_path": MODEL}
    with inf.InferenceEngine(**address, rollout={"name": "openai"}) as engine:
        plain = inf.evaluate(engine, data, reward="reward.py:length")
        tools = inf.evaluate(engine, data, reward="reward.py:length", tools=[calculator("8")])
    assert plain.rows[0]["reward_extra"]["text"] == "TWICE 4?"
    assert tools.rows[0]["reward_extra"]["text"] == "Let me see.\n8\nIt is 8."
