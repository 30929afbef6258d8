"""The grammar of a forced call holds its arguments to the tool's own schema, wherever its
references lead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from _inf.apps.openai_requests import NamedTool
from _inf.apps.tool_choice import call_schema
from _inf.errors import ConfigError
from _inf.parts.grammars.schemas import json_schema_text
from _inf.tools.definition import shown_tools

NUMBER = {"type": "integer"}
NEXT = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
LIST = {"type": "object", "properties": {"v": NUMBER, "next": NEXT}, "required": ["v"]}
OTHER = {"type": "object", "properties": {"v": {"$ref": "#/$defs/q"}}, "$defs": {"q": {"const": 7}}}


def of_v(**words: Any) -> dict[str, Any]:
    return {"type": "object", "required": ["v"], **words}


def takes(schema: Any, value: object) -> bool:
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(
        LLTokenizer("byte"), LLMatcher.grammar_from_json_schema(json_schema_text(schema))
    )
    text = list(json.dumps(value).encode())
    return bool(matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting())


@pytest.mark.parametrize(("several", "others"), [(False, 0), (True, 1), (False, 1)])
@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            LIST,
            {"v": 1, "next": {"v": 2, "next": None}},
            {"v": 1, "next": {"name": "f", "arguments": {"v": 2}}},
        ),
        (
            of_v(properties={"v": {"$ref": "#/$defs/q"}}, **{"$defs": {"q": NUMBER}}),
            {"v": 1},
            {"v": "a"},
        ),
        (
            of_v(properties={"v": {"$ref": "#/properties/w"}, "w": NUMBER}),
            {"v": 1, "w": 2},
            {"v": "a"},
        ),
        (
            of_v(properties={"v": {"$ref": "http://a.org/b#/$defs/q"}}, **{"$defs": {"q": NUMBER}})
            | {"$id": "http://a.org/b"},
            {"v": 1},
            {"v": "a"},
        ),
        (  # what only resembles a reference
            of_v(properties={"v": {"enum": [{"$ref": "#"}]}, "$ref": NUMBER}),
            {"v": {"$ref": "#"}, "$ref": 1},
            {"v": {"$ref": "#/properties/arguments"}},
        ),
    ],
)
def test_references_of_a_forced_call_lead_to_its_own_schema(schema, right, wrong, others, several):
    items = [{"name": "f", "parameters": schema}, *[{"name": "g", "parameters": OTHER}] * others]
    tools = {tool.name: tool for tool in shown_tools(items)}
    grammar = call_schema("required", tools, {}, several=several)

    def called(name: str, arguments: Any) -> Any:
        call = {"name": name, "arguments": arguments}
        return [call] if several else call

    assert takes(grammar, called("f", right))
    assert not takes(grammar, called("f", wrong)) and not takes(grammar, [])
    assert takes(grammar, called("g", {"v": 7})) == bool(others)
    assert not takes(grammar, called("g", {"v": 1}))


def test_forced_call_replaces_the_format_of_an_answer_without_one():
    tools = {tool.name: tool for tool in shown_tools([{"name": "f", "parameters": OTHER}])}
    given = {"json_schema": {"type": "object"}}
    plain = call_schema("required", tools, {}, several=False)
    assert call_schema("required", tools, given, several=False) == plain
    both = shown_tools([{"name": "g"}, {"name": "f", "parameters": OTHER}])
    named = NamedTool.model_validate({"type": "function", "function": {"name": "f"}})
    two = {tool.name: tool for tool in both}
    assert call_schema(named, two, {}, several=False) == plain
    with pytest.raises(ConfigError, match="tool_choice: .* one grammar only; remove regex"):
        call_schema("required", tools, {"regex": "a"}, several=False)
