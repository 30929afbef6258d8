"""Chat with the tools of tools.yaml: `python examples/chat_with_tools.py [MODEL]`.

The default model is a tiny one that was trained to call tools: ask it "What is 12 * 7?".
An empty line or Ctrl-C ends the chat.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from inf import InferenceEngine

HOME = Path(__file__).resolve().parents[1]
MODEL = sys.argv[1] if len(sys.argv) > 1 else str(HOME / "tests" / "tool_model")
TOOLS = {"enable": True, "tool_config_path": str(HOME / "tools.yaml")}


def chat(engine: InferenceEngine, lines: Iterable[str]) -> None:
    messages: list[dict[str, Any]] = []
    for line in lines:
        if not line.strip():
            return
        row = engine.generate([*messages, {"role": "user", "content": line.strip()}])[0]
        for call in row.metadata["tool_calls"]:
            print(f"  [{call['name']} {call['arguments']} -> {call['result']}]")
        print(row.completion)
        messages = row.messages or []  # including tool calls and results


if __name__ == "__main__":
    rollout = {"do_sample": False, "prompt_length": 2048, "multi_turn": TOOLS}
    try:
        with InferenceEngine(model_path=MODEL, rollout=rollout) as engine:
            chat(engine, sys.stdin)
    except KeyboardInterrupt:
        print()
