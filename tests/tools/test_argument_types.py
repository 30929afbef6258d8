"""The value that a model writes as an argument is the one that its call has, whatever the tool's
schema says of its type, in every format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.apps.tool_choice import takes
from _inf.config.tool_formats import ALIASES, FORMATS
from _inf.tools.definition import shown_tools
from _inf.tools.parsing import parse
from _inf.types import ToolCall
from tests.support.tool_call_forms import takes_bare_text, written_value

TEXT, NULL = {"type": "string"}, {"type": "null"}
# No format can write its own marks inside a text without quotes.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="<>\r"), max_size=8) | (
    st.sampled_from(
        ["2024", "1.5", "true", "True", "None", "[1]", '{"a": 1}', '"x"', "", "-0", "1e5"]
    )
)
NUMBERS = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS


class Case:
    """A schema, a value that it takes, the texts that it takes (None: any), and whether it takes
    null."""

    def __init__(
        self, schema: dict[str, Any], value: Any, texts: set[str] | None, null: bool
    ) -> None:
        self.schema, self.value, self.texts, self.null = schema, value, texts, null

    def __repr__(self) -> str:
        return f"{self.value!r} by {self.schema}"


def bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@st.composite
def simple(draw: st.DrawFn) -> Case:
    """One type, or some values: of these, no two are written in the same way."""
    if draw(st.booleans()):
        values = draw(st.lists(SCALARS, min_size=1, max_size=4, unique_by=bare))
        schema = {"enum": values} if len(values) > 1 else {"const": values[0]}
        texts = {value for value in values if isinstance(value, str)}
        return Case(schema, draw(st.sampled_from(values)), texts, None in values)
    objects = st.dictionaries(st.sampled_from(["a", "b"]), SCALARS, max_size=2)
    type_, value = draw(
        st.sampled_from(
            [
                ("string", TEXTS),
                ("integer", st.integers(-(10**9), 10**9)),
                ("number", NUMBERS),
                ("boolean", st.booleans()),
                ("null", st.none()),
                ("array", st.lists(SCALARS, max_size=3)),
                ("object", objects),
            ]
        )
    )
    return Case({"type": type_}, draw(value), None if type_ == "string" else set(), type_ == "null")


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A case in up to three wrappings."""
    case, definitions = draw(simple()), dict[str, Any]()
    for level in range(draw(st.integers(0, 3))):
        schema, wrap = case.schema, draw(st.sampled_from(["anyOf", "oneOf", "allOf", "$ref", "?"]))
        if wrap in ("anyOf", "oneOf"):
            other = draw(simple())
            both = draw(st.permutations([schema, other.schema]))
            of_both = (case.texts, other.texts)
            texts = None if None in of_both else set().union(*filter(None, of_both))
            value = draw(st.sampled_from([case.value, other.value]))
            case = Case({wrap: both}, value, texts, case.null or other.null)
        elif wrap == "?":
            case = Case({**schema, "nullable": True}, case.value, case.texts, True)
            case.value = draw(st.sampled_from([case.value, None]))
        elif wrap == "allOf":
            case.schema = {"title": "X", "allOf": [schema, {"description": "any"}]}
        else:
            definitions[f"d/{level}"] = schema
            case.schema = {"$ref": f"#/$defs/d~1{level}"}
    properties = {"query": case.schema, "other": {"type": "integer"}}
    case.schema = {"type": "object", "properties": properties, "required": ["query", "other"]}
    case.schema["$defs"] = definitions
    return case


def call(format: str, schema: dict[str, Any], value: Any) -> ToolCall:
    tools = shown_tools([{"name": "search", "parameters": schema}])
    (found,) = parse(written_value(format, value), format, tools).calls
    return found


@pytest.mark.parametrize("format", sorted({*FORMATS} - {*ALIASES} | {"step3p5"}))
@settings(deadline=None, max_examples=100)
@given(case=cases())
def test_argument_is_what_was_written(format: str, case: Case) -> None:
    written = expected = case.value
    if takes_bare_text(format) and written is not None:
        if written == "null" and case.null:
            return  # nothing says that it is no null
        if case.texts is None or bare(written) in case.texts:
            expected = bare(written)  # text comes first
    found = call(format, case.schema, written)
    assert found.error is None
    assert found.arguments == {"query": expected}
    assert type(found.arguments["query"]) is type(expected)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"anyOf": [TEXT, NULL]}, "2024", "2024"),
        ({"anyOf": [{"$ref": "#/$defs/text"}, NULL]}, "2024", "2024"),
        ({"enum": [1, "two"]}, "1", 1),
        ({"anyOf": [{"type": "boolean"}, NULL]}, "True", True),  # as Qwen3.5's template writes it
        ({"type": "boolean", "nullable": True}, "None", None),
        ({"type": "string", "minLength": 9}, "5", "5"),  # wrong, and still a text
        ({"type": "string"}, "[" * 60 + "]" * 60, "[" * 60 + "]" * 60),
        ({"type": "number"}, "NaN", "NaN"),
        ({"description": "Anything."}, '{"a": 1}', {"a": 1}),
        ({"$ref": "#/$defs/endless"}, "5", 5),
    ],
)
def test_text_has_the_type_that_the_schema_takes(schema: Any, text: str, value: Any) -> None:
    definitions = {"text": TEXT, "endless": {"$ref": "#/$defs/endless"}}
    whole = {"type": "object", "properties": {"query": schema}, "$defs": definitions}
    found = call("qwen3_coder", whole, text)
    assert (found.arguments, found.error) == ({"query": value}, None)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": TEXT},
        {"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"query": TEXT}}}},
        {"anyOf": [{"properties": {"query": TEXT}}, {"additionalProperties": False}]},
    ],
)
def test_type_may_stand_outside_properties(schema: dict[str, Any]) -> None:
    assert call("qwen3_coder", schema, "2024").arguments == {"query": "2024"}


def test_schema_that_takes_too_long_is_an_error_of_its_call() -> None:
    links = {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)}
    definitions = {**links, "a40": {"type": "array"}}
    whole = {"properties": {"query": {"$ref": "#/$defs/a0"}}, "$defs": definitions}
    assert "over 20000 references" in str(call("qwen3_coder", whole, "5").error)


def test_strict_call_of_an_optional_text_that_looks_like_a_number_is_a_call() -> None:
    parameters = {"type": "object", "properties": {"query": {"anyOf": [TEXT, NULL]}}}
    (tool,) = shown_tools([{"name": "search", "parameters": parameters, "strict": True}])
    assert takes({"search": tool}, call("qwen3_coder", parameters, "2024"))


@pytest.mark.parametrize("format", ["qwen3_coder", "mimo", "glm45", "minimax-m2", "step3"])
def test_argument_that_is_not_closed_does_not_swallow_the_next(format: str) -> None:
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
