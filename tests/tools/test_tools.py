"""What `tools=` accepts and refuses, messages about wrong calls, and failures of tools."""

from __future__ import annotations

import asyncio
import functools
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from _inf.errors import ToolError
from _inf.tools.definition import as_tools
from _inf.tools.execution import execute
from _inf.tools.json_schemas import argument_fault
from _inf.tools.results import Executed
from _inf.types import Tool

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
RULES = {"timeout": 20.0, "max_length": 10_000, "side": "left"}
RULES |= {"instance_id": "row", "execute_kwargs": {}}


def multiply(left: int, right: int | None = None) -> int:
    """
    Multiply two numbers.

    Args:
        left: The left one, or
            the only one.
        right: The right one.
    """
    return left * (right or 1)


async def multiply_async(left: int) -> int:
    """
    Multiply by one.

    Returns:
        The number.
    """
    await asyncio.sleep(0)
    return left


def undocumented(left: int, right: int = 1) -> int:
    return left * right


def partly_described(left: int, right: int = 1) -> int:
    """
    Multiply.

    Args:
        left: The left one.

    Returns:
        The product.
    """
    return left * right


def unhinted(city):
    """
    The weather.

    Args:
        city: Where.
    """


def tool(function: Callable[..., Any]) -> Tool:
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    return Tool("f", schema, function)


def run(given: Tool | Callable[..., Any], arguments: Any = None, **limits: Any) -> Executed:
    given = given if isinstance(given, Tool) else tool(given)
    return asyncio.run(execute(given, arguments or {}, **{**RULES, **limits}))


# ─── What is a tool ───


def test_a_schema_is_taken_with_and_without_its_shell_and_copied():
    mine = {**WEATHER, "parameters": {**PARAMETERS}}
    read = {**WEATHER, "parameters": {**PARAMETERS, "required": np.array(["city"])}}
    forms = [[{"type": "function", "function": mine}], [{"type": "function", **mine}]]
    forms.append(np.array([read], dtype=object))  # of a parquet file
    for form in (*forms, [mine]):
        [made] = as_tools(form)
        assert made == Tool("weather", {"type": "function", "function": WEATHER})
        assert not made.executable
    assert run(made).text.startswith("Error: weather failed")
    mine["parameters"]["late"] = {"type": "string"}
    assert made.parameters == PARAMETERS


@pytest.mark.parametrize(
    ("function", "said", "left"),
    [
        (multiply, "Multiply two numbers.", {"description": "The left one, or the only one."}),
        (multiply_async, "Multiply by one.", {}),
        (undocumented, "", {}),
        (partly_described, "Multiply.", {"description": "The left one."}),
    ],
)
def test_a_function_becomes_a_tool_by_its_hints_and_docstring(function, said, left):
    [made] = as_tools([function])
    assert made.name == function.__name__ and made.function is function and made.executable
    assert made.schema["function"]["description"] == said
    assert made.parameters["properties"]["left"] == {"type": "integer", **left}
    assert made.parameters["required"] == ["left"]
    assert run(made, {"left": 6}).text == "6"
    assert argument_fault(made, {"left": None}) is not None
    if function is multiply:
        assert argument_fault(made, {"left": 1, "right": None}) is None  # it is optional


PROPERTIES = {"x": {"type": "str"}}
SLOW = "^(a|aa)+$"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("weather", "tools: 'weather' is not a list"),
        ([WEATHER, WEATHER], r"tools\[1\]: the name 'weather' is taken by tools\[0\]"),
        (
            [multiply, unhinted],
            r"tools\[1\]: .*'unhinted': .*city is missing a type hint",
        ),
        ([functools.partial(multiply, 2)], r"tools\[0\]: functools\.partial.* has no name;"),
        ([{**WEATHER, "name": "a b"}], r"tools\[0\]\.name: 'a b'"),
        (
            [{"name": "f", "paramters": {}}],
            r"\.paramters: no such field; did you mean 'parameters'",
        ),
        ([{"name": "search", "parameters": {"query": "string"}}], r'\.parameters: .*"type": "obj'),
        (
            [{"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}}],
            r"\.parameters: properties\.x\.type: 'str' is not a .*; did you mean 'string'\?$",
        ),
        ([{"name": "f", "parameters": {"type": "object", "x": {1}}}], "it is not JSON"),
    ],
)
def test_a_wrong_definition_is_refused_by_index_and_field(given, says):
    with pytest.raises(ToolError, match=says):
        as_tools(given)


# ─── Calls that are not executed ───


PATTERNS = {
    "properties": {"x": {"pattern": "^a+$"}},
    "patternProperties": {"^n_": {}},
    "additionalProperties": False,
}
ELSEWHERE = {"properties": {"x": {"$ref": "http://localhost:9/s.json"}}}  # is not downloaded


@pytest.mark.parametrize(
    ("parameters", "arguments", "says"),
    [
        (PARAMETERS, {"city": 3}, "^city: 3 is not of type 'string'$"),
        (PARAMETERS, {"town": 1, "days": 0}, "^[^;]*;[^;]*;[^;]*$"),
        (PARAMETERS, {"city": ["x"] * 10_000}, "^.{1,399}$"),
        (ELSEWHERE, {"x": 1}, "cannot be applied"),
        (PATTERNS, {"x": "aa", "n_1": 3}, "^$"),  # patterns of names are not checked
    ],
)
def test_arguments_are_held_to_the_schema_in_words_for_the_model(parameters, arguments, says):
    asked = Tool("f", {"function": {"parameters": {"type": "object", **parameters}}})
    assert re.search(says, argument_fault(asked, arguments) or "")


def test_pattern_that_takes_hours_is_an_error_of_its_call():
    parameters = {"type": "object", "properties": {"x": {"type": "string", "pattern": SLOW}}}
    started = time.monotonic()
    fault = argument_fault(
        Tool("f", {"function": {"parameters": parameters}}), {"x": "a" * 40 + "!"}
    )
    assert "takes more than" in str(fault) and time.monotonic() - started < 20


def test_patterns_of_names_are_not_searched():
    parameters = {"type": "object", "patternProperties": {SLOW: {}}, "additionalProperties": False}
    started = time.monotonic()
    tool = Tool("f", {"function": {"parameters": parameters}})
    assert argument_fault(tool, {"a" * 40 + "!": 1}) is None
    assert time.monotonic() - started < 2  # Python's `re` takes half a minute


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_check_of_references_that_double_is_an_error_of_its_call(keyword):
    links = {f"a{n}": {"anyOf": [{keyword: f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    defs = {**links, "a40": {"type": "integer"}}
    parameters = {"type": "object", "$defs": defs, "properties": {"x": {keyword: "#/$defs/a0"}}}
    fault = argument_fault(Tool("f", {"function": {"parameters": parameters}}), {"x": "no number"})
    assert "the schema of f cannot be applied: over 20000 references" in str(fault)


# ─── Execution ───


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ({"é": [1.5, None]}, '{"é": [1.5, null]}'),
        ({1, 2}, "{1, 2}"),
        ("", "(no output)"),
        ("a\ud800b", "a?b"),
    ],
)
def test_a_result_is_text(value, text):
    done = run(lambda: value)
    assert (done.text, done.error, done.truncated) == (text, None, False)


def raises(failure: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise failure

    return work


async def raises_exit_async() -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raises_exit_async, "SystemExit: 3"),
        (raises(StopIteration()), "StopIteration"),
        (raises(asyncio.CancelledError()), "CancelledError"),
        (lambda needed: needed, "TypeError: .*needed"),
    ],
)
def test_a_tool_that_fails_is_an_error_for_the_model(function, says):
    done = run(function)
    assert done.error and done.text == f"Error: f failed: {done.error}"
    assert re.search(says, done.error)
    cut = run(function, max_length=10, side="right")  # at its end, whatever the side
    assert cut.text.startswith("Error: f f...") and cut.truncated


async def hangs_async() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)  # it takes its time
            return


def test_a_tool_that_hangs_is_left_behind():
    release = threading.Event()
    for function in (release.wait, hangs_async):
        done = run(tool(function), timeout=0.05)
        assert done.error == "it did not answer within 0.05 seconds"
        assert done.text == f"Error: f failed: {done.error}"
    release.set()


def test_a_hung_thread_does_not_hold_the_exit_of_the_interpreter():
    script = (
        "import asyncio, time\n"
        "from _inf.tools.execution import execute\n"
        "from _inf.types import Tool\n"
        "tool = Tool('f', {}, lambda: time.sleep(600))\n"
        "done = asyncio.run(execute(tool, {}, instance_id='', execute_kwargs={}, timeout=0.05,\n"
        "    max_length=9, side='left'))\n"
        "print(done.error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert "did not answer" in ran.stdout


def test_the_callers_cancellation_comes_out_and_reaches_the_tool():
    seen = []

    async def watched() -> None:
        seen.append("begun")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def cancel() -> None:
        task = asyncio.ensure_future(execute(tool(watched), {}, **{**RULES, "timeout": 60}))
        while not seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(cancel(), 60))
    assert seen == ["begun", "cancelled"]


def test_a_tool_cannot_change_the_recorded_arguments():
    arguments = {"items": [3, 1, 2]}
    assert run(lambda items: items.sort() or items, arguments).text == "[1, 2, 3]"
    assert arguments == {"items": [3, 1, 2]}


def test_an_async_callable_and_a_wrapped_one_are_awaited():
    class Multiplies:
        async def __call__(self, left: int) -> int:
            return left

    @functools.wraps(multiply_async)
    def wrapped(left: int) -> Any:
        return multiply_async(left)

    for function in (Multiplies(), wrapped, functools.partial(multiply_async)):
        assert run(function, {"left": 4}).text == "4"


@pytest.mark.parametrize(
    ("side", "text"),
    [
        ("left", "01234...(15 characters cut)"),
        ("middle", "012...(15 characters cut)...89"),
        ("right", "(15 characters cut)...56789"),
    ],
)
def test_a_long_result_is_cut_with_a_mark_where_verl_cuts(side, text):
    done = run(lambda: "0123456789" * 2, max_length=5, side=side)
    assert (done.text, done.truncated, done.error) == (text, True, None)
    whole = run(lambda: "01234", max_length=5, side=side)
    assert (whole.text, whole.truncated) == ("01234", False)


# ─── verl's tools ───


def verl_tool(returned: Any) -> Tool:
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    class Returns(BaseTool):
        async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
            return returned(instance_id, parameters, kwargs) if callable(returned) else returned

    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    function = {"name": "f", "description": "F.", "parameters": parameters}
    schema = {"type": "function", "function": function}
    (made,) = as_tools([Returns({}, OpenAIFunctionToolSchema.model_validate(schema))])
    assert made.schema == schema and made.executable
    return made


@pytest.mark.verl
def test_what_a_verl_tool_returns_is_tolerated_where_it_is_obvious():
    from verl.tools.schemas import ToolResponse

    made = verl_tool(lambda *got: (ToolResponse(text=str(got)), 0.5, {"calls": 1}))
    done = run(made, {"x": "y"}, execute_kwargs={"k": 1})
    assert done.text == "('row', {'x': 'y'}, {'k': 1})"
    assert (done.reward, done.metrics, done.error) == (0.5, {"calls": 1}, None)
    for returned in ("text", ("text", 1)):
        done = run(verl_tool(returned), {"x": "y"})
        assert (done.text, done.error) == ("text", None)
    assert run(verl_tool(("text", "much", {})), {"x": "y"}).error
    image = (ToolResponse(text="see", image=["pixels"]), 0.0, {})
    assert "only text" in str(run(verl_tool(image), {"x": "y"}).error)


@pytest.mark.verl
def test_metrics_of_a_call_stay_as_they_were_when_it_ended():
    counted = {"calls": 0, "all": [0]}

    def count(*_: Any) -> Any:
        counted["all"].append(1)
        return "text", 0.0, counted

    made = verl_tool(count)
    first, second = run(made, {"x": "y"}), run(made, {"x": "y"})
    assert (first.metrics["all"], second.metrics["all"]) == ([0, 1], [0, 1, 1])
    counted["all"].append(counted)
    assert "contain themselves" in str(run(made, {"x": "y"}).error)
