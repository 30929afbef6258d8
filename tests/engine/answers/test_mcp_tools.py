"""Tools of an MCP server on the real engines, with a model that really calls."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import yaml

from inf import ConfigError, EngineDeadError, InferenceEngine
from tests.support.mcp_servers import noted, stdio
from tests.support.tool_calling import FAILED, GREETED, GREETING, TOOL_MODEL, answer, question

pytest.importorskip("mcp_types", reason="version 2 of the package mcp is not installed (extra mcp)")

PRODUCT, BOTH = question("12 * 7"), question("12 * 7", "3 + 4")


@pytest.mark.verl
def test_lost_server_fails_a_call_and_no_engine_and_ends_with_a_dead_one(tmp_path: Path) -> None:
    file, die = tmp_path / "tools.yaml", tmp_path / "die"
    entry = stdio(tmp_path / "calls", include=["calculator"], env={"INF_TEST_DIE": str(die)})
    file.write_text(yaml.safe_dump([entry]))
    turns = {"enable": True, "tool_config_path": str(file)}
    lengths = {"prompt_length": 1024, "response_length": 512}
    rollout = {"dtype": "float32", "do_sample": False, "multi_turn": turns, **lengths}
    engine = InferenceEngine(model_path=str(TOOL_MODEL), rollout=rollout)
    try:
        die.touch()  # with the first call
        output = engine.generate([PRODUCT, GREETING])
        assert output.completions == [FAILED, GREETED]
        assert "is not repeated" in output.metadata[0]["tool_calls"][0]["error"]
        (tmp_path / "calls").unlink()
        assert engine.generate([PRODUCT, BOTH]).completions == [answer("84"), answer("84", "7")]
        with pytest.raises(ConfigError, match="need a verl tool"):
            engine.generate(PRODUCT, tools_kwargs={"calculator": {"create_kwargs": {"x": 1}}})
        known = {pid for _, pid in noted(tmp_path / "calls")}
        for child in engine.rollout.host.children:
            os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            engine.generate([PRODUCT])
        assert all(map(psutil.pid_exists, known))  # a restarted engine goes on with it
    finally:
        engine.shutdown()
    assert len(known) == 1 and not any(map(psutil.pid_exists, known))
