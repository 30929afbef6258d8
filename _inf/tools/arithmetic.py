"""Arithmetic for a model that cannot do it in its head.

In: an expression. Out: its value as text, as short as it is exact. It walks the syntax tree and
never evaluates code: numbers, `+ - * / // % **`, signs and parentheses, within limits.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

MOST_CHARACTERS = 1000
MOST_DIGITS = 1000
_MOST_BITS = int(MOST_DIGITS * math.log2(10))
_ALLOWED = "only numbers, + - * / // % ** and parentheses are understood"

Number = int | float


def calculate(expression: str) -> str:
    """The value of `expression`, or a `ValueError` that says what is wrong with it."""
    expression = expression.strip()
    if len(expression) > MOST_CHARACTERS:
        raise ValueError(f"the expression is longer than {MOST_CHARACTERS} characters")
    try:
        return _text(_value(ast.parse(expression, mode="eval").body))
    except SyntaxError:
        raise ValueError(f"{expression!r} is not arithmetic; {_ALLOWED}") from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None
    except (RecursionError, MemoryError):
        raise ValueError("the expression is nested too deeply") from None


def _text(value: Number) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return str(value)


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _bounded(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError(f"{ast.unparse(node)[:80]!r} is not arithmetic; {_ALLOWED}")


def _bounded(value: Any) -> Number:
    if isinstance(value, complex):
        raise ValueError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise ValueError(f"a number has more than {MOST_DIGITS} digits")
    return value  # type: ignore[no-any-return]


def _divide(left: Number, right: Number) -> Number:
    """Exact where two integers divide evenly: a float would round a long one."""
    exact = isinstance(left, int) and isinstance(right, int) and left % right == 0
    return left // right if exact else left / right


def _power(base: Number, exponent: Number) -> Any:
    both = isinstance(base, int) and isinstance(exponent, int)
    if both and int(base).bit_length() * exponent > _MOST_BITS:
        raise ValueError(f"the power has more than {MOST_DIGITS} digits")
    return base**exponent


_SIGNS: dict[type, Callable[[Any], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
