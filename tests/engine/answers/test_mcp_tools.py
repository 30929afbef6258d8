"""Tools of an MCP server on the real engines, with a model that really calls."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from _inf.runtime.extras import has_verl
from inf import ConfigError, EngineDeadError, InferenceEngine
from tests.support.mcp_servers import noted, servers_of, stdio
from tests.support.scripts import until
from tests.support.tool_calling import FAILED, GREETED, GREETING, TOOL_MODEL, answer, question

pytest.importorskip("mcp_types", reason="version 2 of the package mcp is not installed (extra mcp)")

PRODUCT, BOTH = question("12 * 7"), question("12 * 7", "3 + 4")
SECONDS = 30.0


def settings(folder: Path, name: str) -> dict[str, Any]:
    """The config of an engine whose calculator is a server's, which notes its calls in `calls`."""
    file = folder / "tools.yaml"
    env = {"INF_TEST_DIE": str(folder / "die")}
    file.write_text(yaml.safe_dump([stdio(folder / "calls", include=["calculator"], env=env)]))
    turns = {"enable": True, "tool_config_path": str(file)}
    lengths = {"prompt_length": 1024, "response_length": 512}
    rollout = {"name": name, "dtype": "float32", "do_sample": False, "multi_turn": turns, **lengths}
    return {"model_path": str(TOOL_MODEL), "rollout": rollout}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp")


@pytest.fixture(scope="module")
def caller(folder: Path) -> Iterator[InferenceEngine]:
    with InferenceEngine(settings(folder, "hf")) as engine:
        yield engine


def server() -> psutil.Process:
    [found] = servers_of(os.getpid())
    return found


def test_a_servers_tool_is_called_like_any_other(caller: InferenceEngine) -> None:
    output = caller.generate([PRODUCT, BOTH, GREETING])
    assert output.completions == [answer("84"), answer("84", "7"), GREETED]
    [call] = output.metadata[0]["tool_calls"]
    assert (call["name"], call["result"], call["error"]) == ("calculator", "84", None)
    if has_verl():
        batch = caller.rollout_batch([PRODUCT], n=1)
        assert batch.non_tensor_batch["completions"].tolist() == [answer("84")]
    with pytest.raises(ConfigError, match="need a verl tool"):
        caller.generate(PRODUCT, tools_kwargs={"calculator": {"create_kwargs": {"x": 1}}})


def test_a_dead_server_fails_calls_of_rows_and_not_the_engine(
    caller: InferenceEngine, folder: Path
) -> None:
    first = server()
    first.kill()
    assert until(lambda: not psutil.pid_exists(first.pid), SECONDS)
    assert caller.generate(PRODUCT).completions == [answer("84")]  # by a new one
    assert server().pid != first.pid
    (folder / "die").touch()
    output = caller.generate([PRODUCT, GREETING])
    assert output.completions == [FAILED, GREETED]
    [call] = output.metadata[0]["tool_calls"]
    assert "was lost during the call" in call["error"] and "is not repeated" in call["error"]
    assert caller.generate(PRODUCT).completions == [answer("84")]


@pytest.mark.verl
def test_shutdown_of_a_dead_engine_ends_the_server(tmp_path: Path) -> None:
    engine = InferenceEngine(settings(tmp_path, "sglang"))
    try:
        assert engine.generate([PRODUCT, BOTH]).completions == [answer("84"), answer("84", "7")]
        known = {pid for _, pid in noted(tmp_path / "calls")}
        for child in engine.rollout.host.children:
            os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            engine.generate([PRODUCT])
        assert all(map(psutil.pid_exists, known))  # a restarted engine goes on with it
    finally:
        engine.shutdown()
    assert len(known) == 1 and not any(map(psutil.pid_exists, known))
