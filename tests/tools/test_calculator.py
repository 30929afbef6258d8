"""The calculator against Python's own arithmetic, and its limits."""

from __future__ import annotations

import random

import pytest

from _inf.tools.calculator import MAX_CHARACTERS, calculate


def drawn(rng: random.Random, depth: int) -> str:
    """An expression that Python computes, too."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([str(rng.randrange(10**6)), repr(rng.random() * 10**6)])
    left, right = (drawn(rng, depth - 1) for _ in range(2))
    operator = rng.choice(["+", "-", "*", "/", "//", "%", "**"])
    right = str(rng.randint(-3, 3)) if operator == "**" else right
    return f"({rng.choice('+-')}{left}) {operator} {right}"


def test_the_value_is_pythons():
    rng = random.Random(0)
    for expression in [drawn(rng, 3) for _ in range(2_000)]:
        try:
            value = eval(expression)
        except (ZeroDivisionError, OverflowError):
            with pytest.raises(ValueError, match="division by zero|too large"):
                calculate(expression)
        else:
            assert float(calculate(expression)) == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_integers_of_any_length_are_exact():
    left, right = 3**80, 7**30
    assert calculate(f"{left} * {right}") == str(left * right)
    assert calculate(f"{left * right} / {right}") == str(left)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2.5 * 2", "5"),
        ("0 * -1.0", "0"),
        ("2 ** -1", "0.5"),
    ],
)
def test_the_result_is_as_short_as_it_is_exact(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "is not arithmetic"),
        ("1e308 * 10 - 1e308 * 10", "too large"),
        ("10 ** 999 * 10 ** 999", "more than 1000 digits"),
        ("__import__('os').getcwd()", "is not arithmetic"),
        ("x + 1", "'x' is not arithmetic"),
        ("(-8) ** 0.5", "not a real number"),
        ("9 ** 9 ** 9", "the power has more than"),
        ("1 +" * MAX_CHARACTERS + "1", "longer than"),
        ("-" * 999 + "1", "nested too deeply"),
    ],
)
def test_what_is_no_arithmetic_is_refused_with_a_reason(expression, says):
    with pytest.raises(ValueError, match=says):
        calculate(expression)
