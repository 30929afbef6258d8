"""Call tools: first Python functions, then the tools of tools.yaml.

    python examples/tool_calling.py                   a tiny model that was trained to call tools
    python examples/tool_calling.py Qwen/Qwen3-0.6B   a real one

The rollout runs the calls and shows the model the results. A call of a schema is returned to you.
"""

from __future__ import annotations

import sys
from pathlib import Path

from inf import GenerationRow, InferenceEngine

HERE = Path(__file__).resolve().parent
TINY = HERE.parent / "tests" / "tool_model"
CONFIG = {
    "model_path": str(TINY),
    "rollout": {
        "do_sample": False,
        "multi_turn": {"enable": True, "tool_config_path": str(HERE.parent / "tools.yaml")},
    },
}
QUESTION = "What is 12 * 7?"


def calculator(expression: str) -> str:
    """
    Calculates.

    Args:
        expression: Two numbers and the operator between them.
    """
    a, operator, b = expression.split()
    return str({"*": int(a) * int(b), "+": int(a) + int(b), "-": int(a) - int(b)}[operator])


SCHEMA = {
    "name": "calculator",
    "description": "Calculates.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def show(title: str, row: GenerationRow) -> None:
    print(f"\n# {title}")
    for call in row.metadata["tool_calls"]:
        print(f"  {call['name']}({call['arguments']}) = {call['result']!r}")
    print(f"  {row.completion!r}  ({row.metadata['finish_reason']})")


def main(engine: InferenceEngine) -> None:
    show("a Python function", engine.generate(QUESTION, tools=[calculator])[0])
    show("tools.yaml, from the config", engine.generate(QUESTION)[0])

    # A schema is not run: the call comes back, and the conversation continues with your result.
    row = engine.generate(QUESTION, tools=[SCHEMA])[0]
    show("a schema", row)
    for call in row.tool_calls or []:
        result = {"role": "tool", "name": call.name, "content": calculator(**call.arguments)}
        again = engine.generate([*(row.messages or []), result], tools=[SCHEMA])[0]
        show(f"after the caller ran {call.name}", again)


if __name__ == "__main__":
    overrides = {"model_path": sys.argv[1]} if len(sys.argv) > 1 else {}
    try:
        with InferenceEngine(CONFIG, **overrides) as engine:
            main(engine)
    except KeyboardInterrupt:
        sys.exit(130)
