"""Which keywords are enforced and which are refused, and random walks through grammars: every text
that llguidance allows must be valid for `jsonschema` or `re`."""

from __future__ import annotations

import json
import random
import re
import sys
from importlib.metadata import version
from typing import Any

import jsonschema
import pydantic
import pytest
from llguidance import LLMatcher, LLTokenizer

from _inf.errors import ConfigError
from _inf.parts.grammars.schemas import json_schema_text, regex_text
from tests.support.grammars import HOSTILE_REGEXES, HOSTILE_SCHEMAS, REGEXES, SCHEMAS, A
from tests.support.installed import ran

VALUES = {"multipleOf": 2, "$ref": "#a", "$dynamicRef": "#a", "minContains": 1, "maxContains": 1}
BYTES = LLTokenizer("byte")  # each byte a token
STOP = BYTES.eos_token
NEGATIVE = {"items": {"type": "number", "multipleOf": 2, "maximum": -21}}
OLD = version("llguidance").startswith("0.")  # finds no negative multiple
# What Python's `\s` matches and Rust's does not.
SEPARATORS = range(0x1C, 0x20)


def json_matcher(schema: Any) -> LLMatcher:
    # As sglang 0.5.9 compiles it, srt/constrained/llguidance_backend.py.
    defaults = {"whitespace_flexible": False, "whitespace_pattern": None}
    text = json_schema_text(schema)
    return LLMatcher(BYTES, LLMatcher.grammar_from_json_schema(text, defaults=defaults))


def regex_matcher(regex: str) -> LLMatcher:
    return LLMatcher(BYTES, LLMatcher.grammar_from_regex(regex_text(regex)))


def takes(matcher: LLMatcher, text: str) -> bool:
    matcher.reset()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def spaced(text: str) -> str:
    """Return JSON with the spaces that answers have; other text unchanged."""
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text


def walk(matcher: LLMatcher, rng: random.Random, most: int = 400) -> str | None:
    """Return a random text that the grammar allows, or None if it gets too long."""
    matcher.reset()
    text = []
    for _ in range(most):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [n for n in range(STOP + 1) if mask >> n & 1 and n not in SEPARATORS]
        assert allowed and not matcher.is_error(), f"a dead end after {bytes(text)!r}"
        # Blanks and deeper nesting are possible nearly everywhere; an end is not.
        ending = [n for n in allowed if n == STOP or n in b'"]}']
        likely = [n for n in allowed if n == STOP or (n < 0x80 and n not in b" \n\t[{")]
        pool = ending if ending and rng.random() < 0.3 else likely if likely else allowed
        chosen = rng.choice(pool if rng.random() < 0.9 else allowed)
        if chosen == STOP:
            return bytes(text).decode()
        matcher.consume_token(chosen)
        text.append(chosen)
    return None


@pytest.mark.parametrize(("schema", "good", "bad"), SCHEMAS)
def test_grammar_takes_what_matches_and_nothing_else(schema, good, bad):
    validator = jsonschema.Draft202012Validator(schema)
    matcher, rng = json_matcher(schema), random.Random(0)
    for text in good:
        assert validator.is_valid(json.loads(text)) and takes(matcher, spaced(text)), text
    for text in bad:
        assert not takes(matcher, spaced(text)), text
    walked = [text for _ in range(40) if (text := walk(matcher, rng)) is not None]
    assert len(walked) > 5
    for text in walked:
        assert validator.is_valid(json.loads(text)), text


def test_address_by_the_grammar_is_one_for_pydantic_too():
    matcher, rng = (
        json_matcher({"type": "string", "format": "uri", "maxLength": 40}),
        random.Random(1),
    )
    texts = [text for _ in range(300) if (text := walk(matcher, rng))]
    assert len(texts) > 100
    for text in texts:
        pydantic.TypeAdapter(pydantic.AnyUrl).validate_json(text)


def test_items_that_a_schema_wants_unique_may_repeat_and_a_warning_names_them():
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"^json_schema\.properties\.a\.uniqueItems: .*repeat"):
            text = json_schema_text(schema)
    assert "uniqueItems" not in text


# Apart only where neither has other properties than its own.
OWN_PROPERTIES = [
    {"type": "object", "properties": {"a": A}, "required": ["a"]},
    {"type": "object", "properties": {"b": A}},
]
REFUSED = [
    # What llguidance would pass over, or round.
    ({"anyOf": [A, {"items": {"nullable": True}}]}, "json_schema.anyOf[1].items.nullable"),
    ({"properties": {"a": {"$id": "urn:a"}}}, "json_schema.properties.a.$id"),
    ({"const": 10**16}, "json_schema"),
    # What it does not enforce, or reports itself.
    ({"$defs": {"a": {"not": {}}}, "$ref": "#/$defs/a"}, "json_schema.$defs.a.not"),
    ({"oneOf": OWN_PROPERTIES}, "json_schema"),
    ({"type": "string", "pattern": "a++"}, "json_schema.pattern"),
    ({"items": {"type": "string", "pattern": r"[^\\]"}}, "json_schema.items.pattern"),
    *([(NEGATIVE, "json_schema.items")] if OLD else []),
    ({"items": {"type": "string", "pattern": "^a{5}$", "maxLength": 3}}, "json_schema.items"),
    ({"patternProperties": {"[[a]": {}}}, "json_schema.patternProperties.[[a]"),
    ({"properties": {"a": A}, "patternProperties": {"b": A}}, "json_schema.patternProperties"),
    # Nothing matches these.
    ({"$ref": "#"}, "json_schema"),
    # No schemas.
    ({"properties": {"a": {"minLength": -1}}}, "json_schema.properties.a.minLength"),
    ({"const": {1, 2}}, "json_schema"),
    ('{"const": "\\ud800"}', "json_schema"),
    ('{"type": "integer", "minimum": 1e400}', "json_schema"),
    (b"{}", "json_schema"),
    ("[" * 100_000, "json_schema"),
    ('{"items": ' * 200 + "{}" + "}" * 200, "json_schema"),
    # These would take minutes.
    ({"items": {"maxItems": 6_000}, "maxItems": 6_000}, "json_schema"),
    ({"properties": {f"p{n}": True for n in range(5_000)}}, "json_schema"),
    ({"allOf": [{**A, "multipleOf": 9973}, {"multipleOf": 9967}]}, "json_schema.multipleOf"),
    ({"type": "string", "pattern": "^a{1000000}$"}, "json_schema.pattern"),
    ({"allOf": [{"anyOf": [{"required": [f"{a}{n}"]} for a in "ab"]} for n in range(30)]},
     "json_schema"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "path"), REFUSED)
def test_what_cannot_be_enforced_is_refused_by_its_path(schema, path):
    with pytest.raises(ConfigError, match=rf"^{re.escape(path)}: [^\n]*[.?]$"):
        json_schema_text(schema)


@pytest.mark.parametrize(
    ("type_", "says"),
    [
        ("objct", "'objct' is not a JSON type; did you mean 'object'?"),
        (["null", "null"], "must name one JSON type or more, each once"),
    ],
)
def test_type_that_json_does_not_have_is_named_with_the_nearest(type_, says):
    with pytest.raises(
        ConfigError, match=rf"^json_schema\.properties\.a\.type: .*{re.escape(says)}"
    ):
        json_schema_text({"properties": {"a": {"type": type_}}})


HOSTILE = {
    **{name: ("json_schema_text", schema) for name, schema in HOSTILE_SCHEMAS.items()},
    **{f"{name}: a regex": ("regex_text", text) for name, text in HOSTILE_REGEXES.items()},
}
HOSTILE_SECONDS = 60
CHECKED = """
import json, resource, sys
from _inf.errors import ConfigError
from _inf.parts.grammars import schemas
name, value = json.load(sys.stdin)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    getattr(schemas, name)(value)
except ConfigError as refusal:
    assert str(refusal).startswith(("json_schema", "regex")), refusal
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_no_schema_or_regex_takes_minutes_or_ends_the_process(name):
    asked = {"says": json.dumps(HOSTILE[name]), "seconds": HOSTILE_SECONDS}
    assert int(ran(sys.executable, "-c", CHECKED, **asked)) < 500_000  # KB


def test_long_strings_and_many_properties_are_served():
    json_schema_text({"type": "string", "minLength": 10**6, "maxLength": 10**9})
    json_schema_text({"type": "object", "additionalProperties": A, "maxProperties": 10**6})
    json_schema_text({"properties": {f"p{n}": {"multipleOf": 100} for n in range(200)}})


def test_every_keyword_that_jsonschema_judges_by_is_enforced_or_refused():
    swept = set(re.findall(r'"([$\w]+)":', json.dumps([schema for schema, _, _ in SCHEMAS])))
    for keyword in jsonschema.Draft202012Validator.VALIDATORS:
        if keyword not in swept:
            with pytest.raises(ConfigError, match=rf"^json_schema\.{re.escape(keyword)}: "):
                json_schema_text({"type": "string", keyword: VALUES.get(keyword, {})})


def test_annotations_and_other_types_keywords_change_nothing():
    noted = {"title": "t", "description": "d", "default": 3, "examples": [1], "$comment": "c"}
    noted |= {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "urn:x"}
    noted |= {"minLength": 3, "deprecated": True}
    matcher = json_matcher(json.dumps({"type": "integer", **noted}))
    assert takes(matcher, "1") and not takes(matcher, '"abc"')


@pytest.mark.parametrize("regex", REGEXES)
def test_random_walks_through_a_regex_match_it(regex):
    matcher = regex_matcher(regex)
    rng = random.Random(0)
    texts = [text for _ in range(30) if (text := walk(matcher, rng)) is not None]
    assert len(texts) > 20
    assert not [text for text in texts if not re.fullmatch(regex, text)]


REFUSED_REGEXES = [
    (r"a(?=b)b", "look-ahead"), (r"(a)\1", "backreference"), (r"a^b", "lookarounds"),
    (r"(?a)\w", "flag"), ("(", "position 0"), ("", "empty"),
    (r"[^\s\S]", "nothing"), ("a{1,20000}", "repeats"), (r"\p{L}", "bad escape"),
    ("a++b", "possessive"), ("[[a]", "inside a class"), ("(?x)a b", "flag x"),
    ("\ud800", "surrogate"), (3, "string"),
]  # fmt: skip


@pytest.mark.parametrize(("regex", "why"), REFUSED_REGEXES)
def test_regex_that_cannot_be_enforced_is_refused(regex, why):
    with pytest.raises(ConfigError, match=rf"^regex: [^\n]*{why}[^\n]*[.?]$"):
        regex_text(regex)


def test_what_only_looks_like_a_refused_regex_is_served():
    for regex in (r"\[[a-z]", r"[^\[\]]x[a]", r"a\++", r"[*+?}]+", "a--b", r"[{99999}]", "a&&b"):
        assert regex_text(regex) == regex


def test_regex_at_any_depth_is_served_or_refused():
    depths = {"served": 0, "refused": 0}
    for depth in range(10, 600, 30):
        try:
            regex_text("(?:" * depth + "a" + "|b)+" * depth)
            depths["served"] += 1
        except ConfigError as failure:
            assert str(failure).startswith("regex: ")
            depths["refused"] += 1
    assert min(depths.values()) > 1


def test_importing_is_light_and_the_root_logger_stays_the_callers():
    code = """
import logging, sys
from _inf.parts.grammars.schemas import json_schema_text, regex_text
assert not {"llguidance", "jsonschema", "torch"} & set(sys.modules)
json_schema_text({"type": "integer"}), regex_text("a+")
assert not {"xgrammar", "sglang", "torch"} & set(sys.modules) and not logging.root.handlers
assert logging.root.level == logging.WARNING
"""
    ran(sys.executable, "-c", code)
