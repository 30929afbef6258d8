"""The calculator against Python's own arithmetic, and its limits."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

MAX_CHARACTERS = 1000
NUMBERS = st.one_of(
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e6, allow_nan=False).map(repr),
)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join),
        st.tuples(st.sampled_from("+-"), inner).map("".join),
        inner.map("({})".format),
        st.tuples(inner.map("({})".format), st.integers(-3, 3).map(str)).map("**".join),
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module", autouse=True)
def calculator() -> None:
    """Import it here, and not in every worker that collects this file: it imports verl."""
    import _inf.tools.calculator  # noqa: F401


def calculate(expression: str) -> str:
    from _inf.tools.calculator import calculate

    return calculate(expression)


@settings(deadline=None)
@given(EXPRESSIONS)
@example("0 / (1 / 5e-324)")
def test_the_value_is_pythons(expression: str) -> None:
    value: Any = None
    try:
        value = eval(expression)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by zero|too large"):  # the first of both
            calculate(expression)
        return
    except OverflowError:
        value = math.inf
    if isinstance(value, complex) or not math.isfinite(value):
        with pytest.raises(ValueError, match="too large|not a real number"):
            calculate(expression)
        return
    got = calculate(expression)
    assert float(got) == pytest.approx(float(value), rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(st.integers(-(10**40), 10**40), st.integers(-(10**40), 10**40))
def test_integers_of_any_length_are_exact(left: int, right: int) -> None:
    assert calculate(f"{left} * {right}") == str(left * right)
    assert calculate(f"({left}) - ({right})") == str(left - right)
    if right:
        quotient = Fraction(left, right)
        if quotient.denominator == 1:
            assert calculate(f"({left}) / ({right})") == str(quotient)
        assert calculate(f"({left * right}) / ({right})") == str(left)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2.5 * 2", "5"),
        ("0 * -1.0", "0"),
        ("2 ** -1", "0.5"),
        ("-7 // 2", "-4"),
        ("1e300", "1e+300"),
        ("((1 + 2)) * -3", "-9"),
    ],
)
def test_the_result_is_as_short_as_it_is_exact(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "is not arithmetic"),
        ("__import__('os').getcwd()", "is not arithmetic"),
        ("x + 1", "'x' is not arithmetic"),
        ("'a' * 3", "is not arithmetic"),
        ("True + 1", "is not arithmetic"),
        ("1 / 0", "division by zero"),
        ("(-8) ** 0.5", "not a real number"),
        ("1e308 * 10", "too large"),
        ("1e308 * 10 - 1e308 * 10", "too large"),
        ("9 ** 9 ** 9", "the power has more than"),
        ("10 ** 999 * 10 ** 999", "more than 1000 digits"),
        ("1 +" * MAX_CHARACTERS + "1", "longer than"),
        ("-" * 999 + "1", "nested too deeply"),
        ("(" * 500 + "1" + ")" * 499, "is not arithmetic|nested too deeply"),
    ],
)
def test_what_is_no_arithmetic_is_refused_with_a_reason(expression: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        calculate(expression)
