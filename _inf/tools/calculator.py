"""A calculator with the methods of verl's tools, used in `tools.yaml`: it walks the syntax tree and
never evaluates code. It needs no verl, and verl's own agent loops can use it."""

from __future__ import annotations

import ast
import math
import operator
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import RootModel

from _inf.types import JSON

Number: TypeAlias = int | float
MAX_CHARACTERS = 1000
MAX_DIGITS = 1000
_MOST_BITS = int(MAX_DIGITS * math.log2(10))
_ALLOWED = "only numbers, + - * / // % ** and parentheses are understood"
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


@dataclass(frozen=True)
class Response:
    """The fields of verl's `ToolResponse`."""

    text: str | None = None
    image: None = None
    video: None = None


class Calculator:
    """`calculate` with the methods of verl's `BaseTool`; it keeps no state. tool_schema: verl's
    object, whose name is the tool's; None for `SCHEMA`."""

    def __init__(self, config: object = None, tool_schema: RootModel[JSON] | None = None) -> None:
        self.config = config
        self.tool_schema = RootModel[JSON](SCHEMA) if tool_schema is None else tool_schema
        self.name: str = self.tool_schema.model_dump()["function"]["name"]

    def get_openai_tool_schema(self) -> RootModel[JSON]:
        return self.tool_schema

    async def create(
        self, instance_id: str | None = None, **kwargs: object
    ) -> tuple[str, Response]:
        return instance_id or uuid.uuid4().hex, Response()

    async def execute(
        self, instance_id: str, parameters: JSON, **kwargs: object
    ) -> tuple[Response, float, JSON]:
        return Response(calculate(str(parameters["expression"]))), 0.0, {}

    async def calc_reward(self, instance_id: str, **kwargs: object) -> float:
        return 0.0

    async def release(self, instance_id: str, **kwargs: object) -> None:
        return None


def calculate(expression: str) -> str:
    """The value of `expression`, or a `ValueError` that says what is wrong with it."""
    expression = expression.strip()
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        value = _bounded(_value(ast.parse(expression, mode="eval").body))
    except SyntaxError:
        raise ValueError(f"{expression!r} is not arithmetic; {_ALLOWED}") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None
    except (RecursionError, MemoryError):
        raise ValueError("the expression is nested too deeply") from None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value)


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _SIGNS:
            return _SIGNS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError(f"{ast.unparse(node)[:80]!r} is not arithmetic; {_ALLOWED}")


def _bounded(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return value


def _divide(left: Number, right: Number) -> Number:
    """Divide; two integers that divide evenly give an integer, since a float would round it."""
    exact = isinstance(left, int) and isinstance(right, int) and left % right == 0
    return left // right if exact else left / right


def _power(base: Number, exponent: Number) -> Number:
    """Compute a power, or raise if an integer result would have too many digits to compute."""
    if (
        isinstance(base, int)
        and isinstance(exponent, int)
        and base.bit_length() * exponent > _MOST_BITS
    ):
        raise ValueError(f"the power has more than {MAX_DIGITS} digits")
    if isinstance(power := base**exponent, complex):
        raise ValueError("the result is not a real number")
    return power


_SIGNS: dict[type, Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_OPERATORS: dict[type, Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
