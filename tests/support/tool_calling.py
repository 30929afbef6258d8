"""What the test model that calls tools understands, and what it answers.

`TOOL_MODEL` is a Transformers folder (Qwen3, some 170,000 weights, float32), made by
`tests/tool_model/train.py` of commit bdcea29. Decode it greedily. Its knowledge is this page:

    question("12 * 7")             calls the calculator, then answer(whatever the tool said)
    question("12 * 7", "3 + 4")    two calls in one turn, then answer(first, second)
    + UNKNOWN_TOOL, BROKEN_JSON,   a wrong first call of this kind, see `call`
      WRONG_KEY or WRONG_TYPE
    + ALOUD                        text before the call
    + RETRY                        after an error it calls once more, rightly
    + ENDLESS                      calls again after whatever the tool said
    GUESS                          "#### 5", no call; at the next user message "#### 7"
    any other first message        GREETED, no call
    any other later message        its last answer once more

A tool result that starts with "Error" gives FAILED (in either of two results too), one that is no
number NO_NUMBER. Without tools in the prompt every question gives CANNOT_SAY. Expressions are
two numbers of up to three digits about one of + - * /; results are numbers of up to five digits,
perhaps with a minus sign or a decimal point. Suffixes belong to single questions. It holds in 95 of
100 chats and more; long nonsense from a tool is where it slips.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOOL_MODEL = Path(__file__).parents[1] / "tool_model"

UNKNOWN_TOOL = " Use the abacus."
BROKEN_JSON = " Write broken JSON."
WRONG_KEY = " Use the wrong key."
WRONG_TYPE = " Use the wrong type."
ALOUD = " Think aloud."
RETRY = " Retry."
ENDLESS = " Never stop."

GREETING, GREETED = "Hello.", "Hello there."
GUESS, GUESSES = "Guess the number.", ("#### 5", "#### 7")
DOUBT = "Are you sure?"
THINKING = "Let me see."
FAILED = "The tool failed."
NO_NUMBER = "That is no number."
CANNOT_SAY = "I cannot say."


def schema(name: str, *parameters: str) -> dict[str, Any]:
    """A tool whose parameters are all required strings."""
    properties = {each: {"type": "string", "description": f"The {each}."} for each in parameters}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name}.",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(parameters),
            },
        },
    }


CALCULATOR = schema("calculator", "expression")


def calculator(result: Any) -> Callable[..., Any]:
    """A tool by that name which says `result`, or raises it, or calls it."""

    def calculator(expression: str) -> str:
        """Calculates.

        Args:
            expression: The expression.
        """
        if isinstance(result, Exception):
            raise result
        return result(expression) if callable(result) else result

    return calculator


def question(*expressions: str) -> str:
    """Return a question with one or two expressions; only a single one may have a suffix."""
    return f"What is {' and '.join(expressions)}?"


def call(expression: str, fault: str = "") -> str:
    """Return the text of the model's call for an expression; `fault` is the question's suffix."""
    name = "abacus" if fault == UNKNOWN_TOOL else "calculator"
    key = "expr" if fault == WRONG_KEY else "expression"
    value = int(expression.split()[0]) if fault == WRONG_TYPE else expression
    body = json.dumps({"name": name, "arguments": {key: value}})
    if fault == BROKEN_JSON:
        body = body.removesuffix("}}")
    return f"<tool_call>\n{body}\n</tool_call>"


def answer(*results: str) -> str:
    if len(results) == 1:
        return f"The answer is {results[0]}."
    return f"The answers are {results[0]} and {results[1]}."
