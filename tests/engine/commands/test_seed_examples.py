"""The examples of the two pages that this project began with, on the session's engine.

Each is as the page has it where the page is right; where it is not, a comment says what was wrong.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from _inf.config import load_config
from _inf.tools.loading import load_tools
from inf import InferenceEngine

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
# The page calls it a verl tool file; plain verl cannot load it. Here the call comes back.
TOOLS = """
tools:
  - name: calculator
    description: Perform arithmetic calculations
    parameters:
      type: object
      properties:
        expression:
          type: string
          description: Math expression to evaluate
      required: [expression]
"""
SHORT = {"max_tokens": 12}  # not in the pages, so that all of this takes seconds
TUTOR = [
    {"role": "system", "content": "You are a helpful math tutor."},
    {"role": "user", "content": "What is 5 + 3?"},
    {"role": "assistant", "content": "5 + 3 equals 8."},
    {"role": "user", "content": "Now multiply that by 2."},
]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "do_sample": True}


def test_config_of_the_page_is_that_of_the_running_engine_but_for_its_dtype(
    engine: InferenceEngine, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    asked, running = load_config(tmp_path / "config.yaml", {}), engine.config
    assert asked.model_path is running.model_path is None
    named = yaml.safe_load(CONFIG)["rollout"].keys() - {"dtype"}
    assert asked.rollout.model_dump(include=named) == running.rollout.model_dump(include=named)


@pytest.mark.parametrize(
    ("prompts", "params", "rows"),
    [
        ("Explain quantum computing in one sentence.", {}, 1),
        (["What is the capital of France?", "What is 10 * 5?"], {"temperature": 0}, 2),
        ([TUTOR], {"temperature": 0}, 1),
        ([TUTOR[1:2], TUTOR], {"temperature": 0.0, "do_sample": False}, 2),
        ("Write a haiku about programming:", SAMPLED | {"top_p": 0.95, "top_k": 50}, 1),
        ("Name a color.", SAMPLED, 1),
    ],
)
def test_call_of_the_page_is_answered(
    engine: InferenceEngine, prompts: Any, params: dict[str, Any], rows: int
) -> None:
    output = engine.generate(prompts, **SHORT, **params)
    assert len(output.completions) == rows and all(output.completions)
    for ids, about in zip(output.token_ids, output.metadata, strict=True):
        # response_mask: the page says "Which tokens are actual response vs padding".
        kept = zip(about["response_ids"], about["response_mask"], strict=True)
        assert [token for token, mask in kept if mask] == ids and len(ids) <= 12
    if params.get("temperature") == 0:
        assert engine.generate(prompts, **SHORT, **params).token_ids == output.token_ids


def test_evaluation_on_gsm8k(engine: InferenceEngine, tmp_path: Path) -> None:
    import datasets

    rows = [{"question": f"What is {i} + {i}?", "answer": f"#### {2 * i}"} for i in range(4)]
    dataset = datasets.Dataset.from_list(rows)
    # The page has `for item in dataset[:10]`, which walks over the names of the columns: a slice of
    # a `datasets` table is a dict of columns. `select` gives rows.
    prompts = [f"Solve: {item['question']}" for item in dataset.select(range(3))]
    outputs = engine.generate(prompts, temperature=0, do_sample=False, **SHORT)
    assert len(outputs.completions) == 3 and all(outputs.completions)


def test_tools_of_the_page_are_shown_and_a_call_comes_back(
    engine: InferenceEngine, tmp_path: Path
) -> None:
    """Given with the call, as the config's are in `test_tool_loop.py`; that saves a start."""
    (tmp_path / "tools.yaml").write_text(TOOLS)
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
