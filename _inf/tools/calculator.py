"""A calculator as a verl tool: `tools.yaml` names it. The arithmetic is `_inf.tools.arithmetic`'s.

Importing this imports verl. A wrong expression raises `ValueError`, which the rollout tells the
model.
"""

from __future__ import annotations

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from _inf.tools.arithmetic import calculate

_EXPRESSION = {
    "type": "string",
    "description": "Numbers, + - * / // % ** and parentheses, such as (3 + 4) * 12",
}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": _EXPRESSION},
            "required": ["expression"],
        },
    },
}


class Calculator(BaseTool):  # type: ignore[misc]
    """verl's tool interface over `calculate`; it keeps no state."""

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return OpenAIFunctionToolSchema.model_validate(SCHEMA)

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        return ToolResponse(text=calculate(str(parameters["expression"]))), 0.0, {}
