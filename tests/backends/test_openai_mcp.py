"""Tools of an MCP server on `openai`: the life of a server beside that of its engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from inf import ConfigError, ToolError
from tests.support.mcp_servers import noted, servers_of, stdio
from tests.support.scripted_server import call, chat, connected, scripted

pytest.importorskip("mcp_types", reason="version 2 of the package mcp is not installed (extra mcp)")

CALL = json.dumps({"expression": "12 * 7"})


def turns(folder: Path, **fields: Any) -> dict[str, Any]:
    file = folder / "tools.yaml"
    file.write_text(yaml.safe_dump([stdio(folder / "calls", **fields)]))
    return {"multi_turn": {"enable": True, "tool_config_path": str(file)}}


def test_a_servers_tool_runs_and_ends_with_the_engine(tmp_path):
    def answers(path: str, body: Any) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            return chat(f"It is {last['content']}.")
        return chat(None, [call("calculator", CALL)], "tool_calls")

    with scripted(answers) as server:
        with connected(server, rollout=turns(tmp_path, include=["calculator"])) as engine:
            [row] = engine.generate("How much?")
            assert row.completion == "It is 84."
            assert row.metadata["tool_calls"][0]["error"] is None
            [(_, pid)] = noted(tmp_path / "calls")
            assert psutil.pid_exists(pid)
            engine.restart()
            assert engine.generate("How much?").completions == ["It is 84."]
            assert {known for _, known in noted(tmp_path / "calls")} == {pid}
        assert not psutil.pid_exists(pid)


def test_an_engine_that_does_not_start_leaves_no_server(tmp_path):
    with scripted(lambda path, body: chat("")) as server:
        rollout = turns(tmp_path, include=["pid"])
        wrong = {"agent": {"agent_loop_config_path": str(tmp_path / "none.yaml")}}
        with pytest.raises(ConfigError):
            connected(server, tokenizer_path="tests/tool_model", rollout={**rollout, **wrong})
        assert not servers_of(os.getpid())
        with pytest.raises(ToolError, match=r"tools.yaml: tools\[0\].include\[0\]: the server"):
            connected(server, rollout=turns(tmp_path, include=["x"]))
        assert not servers_of(os.getpid())
