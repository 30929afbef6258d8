"""The value that a model writes as an argument is the one that its call has, whatever the tool's
schema says of its type, in every format."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.apps.tool_choice import takes
from _inf.config.tool_formats import ALIASES, FORMATS
from _inf.tools.definition import shown_tools
from _inf.tools.parsing import parse
from _inf.types import ToolCall
from tests.support.tool_call_forms import written_value

TEXT, NULL = {"type": "string"}, {"type": "null"}


def call(format: str, schema: dict[str, Any], value: Any) -> ToolCall:
    tools = shown_tools([{"name": "search", "parameters": schema}])
    (found,) = parse(written_value(format, value), format, tools).calls
    return found


FORMS = sorted({*FORMATS} - {*ALIASES} | {"step3p5"})


@pytest.mark.parametrize("format", FORMS)
def test_argument_is_what_was_written(format):
    for schema, values in (
        (TEXT, ["2024", "1.5", "true", "None", "[1]", '"x"', "", "a\nb"]),
        ({"type": "integer"}, [2024]),
        ({"type": "number"}, [1.5, -3]),
        ({"type": "boolean", "nullable": True}, [True, False, None]),
        ({"type": "array"}, [[], [1, "a", None]]),
        ({"type": "object"}, [{}, {"a": 1.5, "b": "c"}]),
        ({"enum": [1, "two", None]}, [1, "two", None]),
        ({"const": "5"}, ["5"]),
    ):
        for value in values:
            found = call(format, {"type": "object", "properties": {"query": schema}}, value)
            assert (found.arguments, found.error) == ({"query": value}, None)
            assert type(found.arguments["query"]) is type(value)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"oneOf": [{"type": "integer"}, TEXT]}, "2024", "2024"),  # text comes first
        ({"title": "X", "allOf": [{"$ref": "#/$defs/text"}, {"description": "any"}]}, "5", "5"),
        ({"$ref": "#/$defs/a~1b"}, "5", "5"),
        ({"anyOf": [{"type": "boolean"}, NULL]}, "True", True),  # as Qwen3.5's template writes it
        ({"type": "string"}, "[" * 60 + "]" * 60, "[" * 60 + "]" * 60),
        ({"type": "number"}, "NaN", "NaN"),
        ({"description": "Anything."}, '{"a": 1}', {"a": 1}),
        ({"$ref": "#/$defs/endless"}, "5", 5),
    ],
)
def test_text_has_the_type_that_the_schema_takes(schema, text, value):
    definitions = {"text": TEXT, "a/b": TEXT, "endless": {"$ref": "#/$defs/endless"}}
    properties = {"query": schema, "other": {"type": "integer"}}
    whole = {"type": "object", "properties": properties, "$defs": definitions}
    found = call("qwen3_coder", {**whole, "required": ["query", "other"]}, text)
    assert (found.arguments, found.error) == ({"query": value}, None)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"query": TEXT}}}},
        {"anyOf": [{"properties": {"query": TEXT}}, {"additionalProperties": False}]},
        {"oneOf": [{"properties": {"query": TEXT}, "required": [name]} for name in "ab"]},
    ],
)
def test_type_may_stand_outside_properties(schema):
    assert call("qwen3_coder", schema, "2024").arguments == {"query": "2024"}


def test_schema_that_takes_too_long_is_an_error_of_its_call():
    links = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    definitions = {**links, "a40": {"type": "array"}}
    whole = {"properties": {"query": {"$ref": "#/$defs/a0"}}, "$defs": definitions}
    assert "over 20000 references" in str(call("qwen3_coder", whole, "5").error)


def test_strict_call_of_an_optional_text_that_looks_like_a_number_is_a_call():
    parameters = {"type": "object", "properties": {"query": {"anyOf": [TEXT, NULL]}}}
    (tool,) = shown_tools([{"name": "search", "parameters": parameters, "strict": True}])
    assert takes({"search": tool}, call("qwen3_coder", parameters, "2024"))


@pytest.mark.parametrize("format", ["qwen3_coder", "mimo", "glm45", "minimax-m2", "step3"])
def test_argument_that_is_not_closed_does_not_swallow_the_next(format):
    names = {"query": TEXT, "other": TEXT}
    (tool,) = shown_tools([{"name": "search", "parameters": {"properties": names}}])
    whole = written_value(format, "5")
    ends = {"glm45": "</arg_value>", "step3": "</steptml:parameter>"}.get(format, "</parameter>")
    begins = {"glm45": "<arg_key>", "step3": "<steptml:parameter"}.get(format, "<parameter")
    argument = whole[whole.index(begins) : whole.index(ends) + len(ends)]
    opened, other = argument.replace(ends, ""), argument.replace("query", "other")
    absent = opened.replace("query", "absent")
    for written, arguments in (
        (f"{opened}\n{other}", {"query": "5", "other": "5"}),
        (argument.replace("5", f"see {absent}"), {"query": f"see {absent}"}),
    ):
        (found,) = parse(whole.replace(argument, written), format, [tool]).calls
        assert (found.arguments, found.error) == (arguments, None)
