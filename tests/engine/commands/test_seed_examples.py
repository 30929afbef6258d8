"""The config and the tools of the two pages that this project began with, on the session's engine.

Their calls are those of the README, which `test_backends.py` runs on every backend.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from _inf.config import load_config
from _inf.tools.loading import load_tools
from inf import InferenceEngine
from tests.support.seed_pages import TOOL_SCHEMA

CONFIG = """
model_path: null  # the pages have Qwen/Qwen3-0.6B here; null is the embedded model
trust_remote_code: false
rollout:
  name: sglang
  mode: async
  prompt_length: 2048
  response_length: 512
  tensor_model_parallel_size: 1
  gpu_memory_utilization: 0.5
  dtype: auto
"""
SHORT = {"max_tokens": 12}  # not in the pages, so that all of this takes seconds


@pytest.mark.verl
def test_config_of_the_page_is_that_of_the_running_engine_but_for_its_dtype(
    engine: InferenceEngine, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    asked, running = load_config(tmp_path / "config.yaml", {}), engine.config
    assert asked.model_path is running.model_path is None
    named = yaml.safe_load(CONFIG)["rollout"].keys() - {"dtype"}
    assert asked.rollout.model_dump(include=named) == running.rollout.model_dump(include=named)


def test_tools_of_the_page_are_shown_and_a_call_comes_back(
    engine: InferenceEngine, tmp_path: Path
) -> None:
    """Given with the call, as the config's are in `test_tool_loop.py`; that saves a start."""
    # The page calls it a verl tool file; plain verl cannot load it. Here the call comes back.
    (tmp_path / "tools.yaml").write_text(TOOL_SCHEMA)
    turns = {"enable": True, "max_assistant_turns": 5, "format": "hermes"}  # or llama3_json
    config = yaml.safe_load(CONFIG)
    config["rollout"]["multi_turn"] = turns | {"tool_config_path": str(tmp_path / "tools.yaml")}
    path = load_config(config, {}).rollout.multi_turn.tool_config_path
    tools = [tool.schema for tool in load_tools(str(path))]
    messages = [{"role": "user", "content": "What is 25 * 4?"}]
    output = engine.generate([messages], tools=tools, **SHORT)
    assert output.metadata[0]["prompt_tokens"] > 100  # the schema is in it
    # "Parse and execute tool, then continue conversation": a model as small as this one hardly
    # ever calls, so here the call is given.
    inner = json.dumps({"name": "calculator", "arguments": {"expression": "25 * 4"}})
    text = f"<tool_call>\n{inner}\n</tool_call>"
    [call] = engine.parse_tool_calls(text)
    assert (call.name, call.arguments) == ("calculator", {"expression": "25 * 4"})
    said = [{"role": "assistant", "content": text}, {"role": "tool", "content": "100"}]
    assert engine.generate([messages + said], tools=tools, **SHORT).completions[0]
