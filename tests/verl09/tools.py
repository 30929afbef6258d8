"""The tool of the test: a function, as verl 0.9 takes them (`multi_turn.function_tool_path`)."""

from __future__ import annotations

from verl.tools.function_tool import function_tool


@function_tool
def calculator(expression: str) -> str:
    """Calculates.

    Args:
        expression: Two numbers and the operator between them.
    """
    left, operator, right = expression.split()
    results = {"+": int(left) + int(right), "-": int(left) - int(right)}
    return str({**results, "*": int(left) * int(right)}[operator])
