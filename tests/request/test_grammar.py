"""What is enforced, keyword by keyword; what is refused, by its path; and random walks through the
grammars: whatever xgrammar lets a model write, `jsonschema` and `re` must take."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
import xgrammar
from grammars import REGEXES, draw_schemas

from _inf.errors import ConfigError
from _inf.request.grammar import json_schema_text, regex_text

# Every ASCII character, and some beyond, of two, three and four bytes.
TOKENS = [chr(code) for code in range(1, 128)] + [*"éèàöß€中😀", "</s>"]
STOP = len(TOKENS) - 1
COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([token.encode() for token in TOKENS], stop_token_ids=[STOP])
)


def json_matcher(schema: Any) -> xgrammar.GrammarMatcher:
    # As sglang 0.5.9 compiles it, srt/constrained/xgrammar_backend.py.
    compiled = COMPILER.compile_json_schema(schema=json_schema_text(schema), any_whitespace=True)
    return xgrammar.GrammarMatcher(compiled)


def takes(matcher: xgrammar.GrammarMatcher, text: str) -> bool:
    matcher.reset()
    return matcher.accept_string(text) and matcher.accept_token(STOP)


def walk(matcher: xgrammar.GrammarMatcher, rng: random.Random, most: int = 400) -> str | None:
    """A random text of the grammar, or None where it has not ended in time."""
    matcher.reset()
    mask = xgrammar.allocate_token_bitmask(1, len(TOKENS))
    text = ""
    for _ in range(most):
        matcher.fill_next_token_bitmask(mask)
        allowed = [n for n in range(len(TOKENS)) if mask[0, n // 32].item() >> (n % 32) & 1]
        assert allowed, f"a dead end after {text!r}"
        # Blanks and deeper nesting are possible nearly everywhere; an end is not.
        ending = [n for n in allowed if n == STOP or TOKENS[n] in '"]}']
        likely = [n for n in allowed if n == STOP or TOKENS[n] not in " \n\t[{"]
        pool = ending if ending and rng.random() < 0.3 else likely if likely else allowed
        chosen = rng.choice(pool if rng.random() < 0.9 else allowed)
        if chosen == STOP:
            return text
        matcher.accept_token(chosen)
        text += TOKENS[chosen]
    return None


A = {"type": "integer"}
TREE = {
    "$defs": {"tree": {"type": "object", "properties": {"kids": {"$ref": "#/$defs/list"}}},
              "list": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "$ref": "#/$defs/tree",
}  # fmt: skip
SHAPES = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "a"}, "x": A}, "required": ["kind"]},
        {"type": "object", "properties": {"kind": {"const": "b"}}, "required": ["kind"]},
    ]
}
DAYS = {"type": "string", "format": "date"}
VALUES = {"multipleOf": 2, "$ref": "#a", "$dynamicRef": "#a", "minContains": 1, "maxContains": 1}
# Keyword, schema, texts that match, texts that do not.
ENFORCED = [
    ("type", {"type": "integer"}, ["0", "-12"], ["1.5", '"1"', "true", "01"]),
    ("type", {"type": ["string", "null"]}, ['"x"', "null"], ["1", "[]"]),
    ("type", {"type": "number"}, ["1.5e3", "-0.25"], ["NaN", "null"]),
    ("type", {"type": "boolean"}, ["true", "false"], ["0", '"true"']),
    ("const", {"const": {"a": [1, None]}}, ['{"a":[1,null]}'], ["{}", "[1]"]),
    ("enum", {"enum": ["é", 'a"b\\', 1.5, None]}, ['"é"', '"a\\"b\\\\"', "1.5"], ['"x"', "1"]),
    ("enum", {"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"]),
    ("enum", {"maximum": 2, "enum": [1, 2, 3]}, ["2"], ["3"]),
    ("minimum", {"type": "integer", "minimum": 5}, ["5", "10", "123"], ["1", "4", "-5"]),
    ("minimum", {"type": "integer", "minimum": -3}, ["-3", "0", "99"], ["-4", "-10"]),
    ("minimum", {"type": "integer", "minimum": 115, "maximum": 132}, ["115", "132"],
     ["110", "114", "133", "15"]),
    ("maximum", {"type": "integer", "maximum": 107}, ["107", "-9", "0"], ["108", "1000"]),
    ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 0}, ["1", "77"], ["0", "-1"]),
    ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 2.5}, ["2"], ["3"]),
    ("minLength", {"type": "string", "minLength": 2}, ['"ab"', '"中é😀"'], ['"a"', '""']),
    ("maxLength", {"type": "string", "maxLength": 2}, ['"ab"', '""'], ['"abc"', '"\t"', '"\x01"']),
    ("maxLength", {"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    ("minLength", {"minLength": 1}, ['"a"'], ['""']),
    ("pattern", {"type": "string", "pattern": "^[a-f]+$"}, ['"fade"'], ['"fog"', '""']),
    ("pattern", {"type": "string", "pattern": '"\\d'}, ['"\\"1"'], ['""1"', '"1"']),
    ("pattern", {"type": "string", "pattern": "a.c", "maxLength": 3}, ['"abc"', '"a中c"'],
     ['"a"c"', '"ac"']),
    ("format", DAYS, ['"2024-02-28"'], ['"2024-02-31"', '"2024-13-01"', '"24-01-01"']),
    ("format", {"type": "string", "format": "ipv4"}, ['"10.0.0.255"'], ['"10.0.0.256"']),
    ("items", {"type": "array", "items": A}, ["[]", "[1, 2]"], ['["a"]', "[1,]"]),
    ("minItems", {"type": "array", "items": A, "minItems": 2}, ["[1,2]"], ["[1]", "[]"]),
    ("minItems", {"type": "array", "minItems": 1}, ['["a"]'], ["[]"]),
    ("maxItems", {"type": "array", "items": A, "maxItems": 1}, ["[]", "[1]"], ["[1,2]"]),
    ("maxItems", {"type": "array", "prefixItems": [A, A], "maxItems": 1}, ["[1]"], ["[1,2]"]),
    ("prefixItems", {"type": "array", "prefixItems": [A, {"type": "null"}], "items": False},
     ["[1,null]"], ["[null,1]", "[1,null,2]"]),
    ("prefixItems", {"prefixItems": [A], "items": {"type": "null"}, "minItems": 2},
     ["[1,null]"], ["[1,1]", "[1]"]),
    ("uniqueItems", {"type": "array", "uniqueItems": False, "items": A}, ["[1,1]"], ["1"]),
    ("properties", {"type": "object", "properties": {"a": A, 'q"\\\n': A}},
     ['{"a": 1}', '{"q\\"\\\\\\n":2}', "{}"], ['{"a":"x"}']),
    ("required", {"type": "object", "properties": {"a": A, "b": A}, "required": ["b"]},
     ['{"b":1}', '{"a":1,"b":2}'], ['{"a":1}', "{}"]),
    ("required", {"type": "object", "properties": {"a": A}, "required": ["z"]},
     ['{"z":[1]}'], ["{}", '{"a":1}']),
    ("additionalProperties", {"type": "object", "additionalProperties": A},
     ['{"x":1,"y":2}', "{}"], ['{"x":"1"}']),
    ("additionalProperties", {"type": "object", "additionalProperties": False}, ["{}"],
     ['{"a":1}']),
    ("maxProperties", {"type": "object", "maxProperties": 1}, ["{}", '{"a":1}'],
     ['{"a":1,"b":2}']),
    ("minProperties", {"type": "object", "additionalProperties": A, "minProperties": 1},
     ['{"a":1}'], ["{}"]),
    ("minProperties", {"properties": {"a": A, "b": A}, "minProperties": 2}, ['{"a":1,"b":1}'],
     ['{"a":1}']),
    ("$ref", TREE, ['{"kids":[{},{"kids":[]}]}', "{}"], ['{"kids":[1]}', "[]"]),
    ("$ref", {"type": "array", "items": {"$ref": "#"}}, ["[]", "[[],[[]]]"], ["[1]"]),
    ("$ref", {"$defs": {"a/b c": A}, "$ref": "#/$defs/a~1b%20c"}, ["1"], ["null"]),
    ("allOf", {"allOf": [A]}, ["1"], ["null"]),
    ("anyOf", {"anyOf": [A, {"type": "null"}], "title": "x"}, ["1", "null"], ['"x"']),
    ("oneOf", SHAPES, ['{"kind":"a","x":1}', '{"kind":"b"}'], ['{"kind":"c"}', "{}"]),
    ("oneOf", {"oneOf": [A, {"type": "string"}]}, ["1", '"a"'], ["null"]),
    ("true", True, ['{"a":[null,{}]}', "1"], ["nope"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "good", "bad"), [case[1:] for case in ENFORCED], ids=[case[0] for case in ENFORCED]
)
def test_keyword_is_enforced(schema: Any, good: list[str], bad: list[str]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    matcher = json_matcher(schema)
    for text in good:
        assert validator.is_valid(json.loads(text)) and takes(matcher, text), text
    for text in bad:
        assert not takes(matcher, text), text


REFUSED = [
    ({"type": "integer", "multipleOf": 3}, "json_schema.multipleOf"),
    ({"properties": {"a": {"type": "number", "maximum": 1}}}, "json_schema.properties.a.maximum"),
    ({"minimum": 0}, "json_schema.minimum"),
    ({"type": "integer", "minimum": 0, "maximum": 10**6}, "json_schema"),
    ({"type": "integer", "maximum": -7}, "json_schema.maximum"),
    ({"type": "integer", "minimun": 0}, "json_schema.minimun"),
    ({"not": {}}, "json_schema.not"),
    ({"if": {}, "then": {}}, "json_schema.if"),
    ({"type": "array", "contains": {"type": "null"}}, "json_schema.contains"),
    ({"type": "array", "uniqueItems": True}, "json_schema.uniqueItems"),
    ({"type": "array", "unevaluatedItems": False}, "json_schema.unevaluatedItems"),
    ({"type": "object", "patternProperties": {"a": {}}}, "json_schema.patternProperties"),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, "json_schema.propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "json_schema.dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, "json_schema.unevaluatedProperties"),
    ({"properties": {"a": A}, "additionalProperties": A}, "json_schema.additionalProperties"),
    ({"properties": {"a": A, "b": A, "c": A}, "minProperties": 2}, "json_schema"),
    ({"type": "object", "minProperties": 2}, "json_schema.minProperties"),
    ({"anyOf": [A, {"items": {"format": "regex"}}]}, "json_schema.anyOf[1].items.format"),
    ({"anyOf": [A], "minimum": 3}, "json_schema.minimum"),
    ({"allOf": [A, {"minimum": 3}]}, "json_schema.allOf"),
    ({"oneOf": [A, {"type": "number"}]}, "json_schema.oneOf[1]"),
    ({"oneOf": [{"type": "object"}, {"type": "object"}]}, "json_schema.oneOf[1]"),
    ({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}, "json_schema.$defs.a.not"),
    ({"$ref": "https://example.com/schema"}, "json_schema.$ref"),
    ({"$ref": "#/$defs/none"}, "json_schema.$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": A}, "maximum": 3}, "json_schema.maximum"),
    ({"$dynamicRef": "#a"}, "json_schema.$dynamicRef"),
    ({"type": "string", "pattern": "a(?=b)"}, "json_schema.pattern"),
    ({"type": "string", "pattern": "("}, "json_schema.pattern"),
    ({"type": "string", "pattern": "a+", "maxLength": 3}, "json_schema.maxLength"),
    ({"type": "string", "format": "email"}, "json_schema.format"),
    ({"properties": {"a": False}}, "json_schema.properties.a"),
    # Nothing matches these.
    (False, "json_schema"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "json_schema"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "json_schema"),
    ({"type": "string", "enum": [1]}, "json_schema"),
    ({"type": "array", "items": False, "minItems": 1}, "json_schema"),
    ({"additionalProperties": False, "required": ["a"]}, "json_schema.required"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "json_schema.$ref"),
    ({"$ref": "#"}, "json_schema.$ref"),
    # No schemas.
    ({"type": "intger"}, "json_schema.type"),
    ({"properties": {"a": {"minLength": -1}}}, "json_schema.properties.a.minLength"),
    ({"const": 2**63}, "json_schema"),
    ({"const": float("nan")}, "json_schema"),
    ({"const": {1, 2}}, "json_schema"),
    ("{", "json_schema"),
    ("[]", "json_schema"),
    ('{"const": NaN}', "json_schema"),
    ('{"type": "integer", "minimum": 1e400}', "json_schema"),
    (b"{}", "json_schema"),
    ("[" * 100_000, "json_schema"),
]


@pytest.mark.parametrize(("schema", "path"), REFUSED)
def test_what_cannot_be_enforced_is_refused_by_its_path(schema: Any, path: str) -> None:
    with pytest.raises(ConfigError) as failure:
        json_schema_text(schema)
    message = str(failure.value)
    assert message.startswith(f"{path}: ") and message.endswith((".", "?")) and "\n" not in message


def test_every_keyword_that_jsonschema_judges_by_is_enforced_or_refused() -> None:
    swept = {case[0] for case in ENFORCED} | {"const"}
    for keyword in jsonschema.Draft202012Validator.VALIDATORS:
        if keyword not in swept:
            with pytest.raises(ConfigError, match=rf"^json_schema\.{re.escape(keyword)}: "):
                json_schema_text({"type": "string", keyword: VALUES.get(keyword, {})})


def test_annotations_and_other_types_keywords_change_nothing() -> None:
    plain = json_schema_text({"type": "integer"})
    noted = {"title": "t", "description": "d", "default": 3, "examples": [1], "$comment": "c"}
    noted |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:x"}
    assert json_schema_text({"type": "integer", "minLength": 3, **noted}) == plain
    assert json_schema_text(json.dumps({"type": "integer", "deprecated": True})) == plain


def test_random_walks_through_drawn_schemas_end_in_valid_json() -> None:
    rng = random.Random(0)
    schemas, refused = draw_schemas(100)
    ended = 0
    for schema in schemas:
        matcher = json_matcher(schema)
        for _ in range(5):
            text = walk(matcher, rng)
            if text is not None:
                ended += 1
                jsonschema.validate(json.loads(text), schema)
    assert len(schemas) == 100 and refused > 10
    assert ended > 400


@pytest.mark.parametrize("regex", REGEXES)
def test_random_walks_through_a_regex_match_it(regex: str) -> None:
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_regex(regex_text(regex)))
    rng = random.Random(0)
    texts = [text for _ in range(30) if (text := walk(matcher, rng)) is not None]
    assert len(texts) > 20
    assert not [text for text in texts if not re.fullmatch(regex, text)]


def test_a_class_of_characters_is_exactly_that_of_re() -> None:
    rng = random.Random(0)
    for _ in range(300):
        ends = sorted(rng.sample(range(1, 128), 4))
        inside = "".join(f"\\x{code:02x}" + "-" * (n == 0) for n, code in enumerate(ends))
        regex = f"[{rng.choice(['', '^'])}{inside}]"
        matcher = xgrammar.GrammarMatcher(COMPILER.compile_regex(regex_text(regex)))
        taken = [token for token in TOKENS[:-1] if takes(matcher, token)]
        assert taken == [token for token in TOKENS[:-1] if re.fullmatch(regex, token)], regex


REFUSED_REGEXES = [
    (r"a(?=b)b", "lookahead"), (r"(?<!a)b", "lookbehind"), (r"(a)\1", "backreference"),
    (r"\bword\b", "word boundary"), (r"a^b", "anchor"), (r"a$b", "anchor"), (r"(?i)a", "flags"),
    (r"(?i:a)", "flag"), (r"(a)(?(1)b|c)", "conditional"), ("(", "position 0"), ("*", "position 0"),
    ("[a", "position 0"), ("", "empty"), ("^$", "empty"), ("[一-鿿]+", "non-ASCII"),
    ("[^é]", "non-ASCII"), (r"[^\s\S]", "no character"), ("a{1,20000}", "repeats"),
    ("((a{0,99}b){0,99}c){0,99}", "repeats"),
    ("\ud800", "surrogate"), (3, "string"), (["a"], "string"), (b"a", "string"),
]  # fmt: skip


@pytest.mark.parametrize(("regex", "why"), REFUSED_REGEXES)
def test_regex_that_cannot_be_enforced_is_refused(regex: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=r"^regex: [^\n]*[.?]$") as failure:
        regex_text(regex)
    assert why in str(failure.value)


def test_regex_at_any_depth_is_served_or_refused() -> None:
    depths = {"served": 0, "refused": 0}
    for depth in range(10, 600, 10):
        try:
            regex_text("(?:" * depth + "a" + "|b)+" * depth)
            depths["served"] += 1
        except ConfigError as failure:
            assert str(failure).startswith("regex: ")
            depths["refused"] += 1
    assert min(depths.values()) > 5


def test_importing_is_light_and_the_root_logger_stays_the_callers() -> None:
    code = """
import logging, sys
from _inf.request.grammar import json_schema_text, regex_text
assert not {"xgrammar", "jsonschema", "torch"} & set(sys.modules)
json_schema_text({"type": "integer"}), regex_text("a+")
assert "xgrammar" in sys.modules and not logging.root.handlers
assert logging.root.level == logging.WARNING
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
