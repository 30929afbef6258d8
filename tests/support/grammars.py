"""Schemas and regexes that grammars are tested with, the same ones in every run."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from _inf.errors import ConfigError
from _inf.request.grammar import json_schema_text

# hypothesis-jsonschema 0.23.1 draws nothing with the hypothesis of today, so these are by hand.
_COUNT = st.integers(0, 6)
_NUMBER = st.integers(-40, 400)
_DECIMAL = st.sampled_from([-1000, -2.5, -0.125, 0, 0.75, 10, 12.5, 99.5, 1e6])
_VALUES: list[Any] = [None, True, 0, -7, 3.25, "", "red", 'a "b"', "né\n", [1, "x"], {"k": 0}]
_NAMES = st.sampled_from(["a", "b", "name", 'say "hi"', "größe", "x\\y"])


def _schema(**words: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a schema with these keywords; a keyword named `maybe_x` is sometimes left out."""
    drawn = {
        word: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for word, value in words.items()
    }
    return st.fixed_dictionaries(
        {word: value for word, value in drawn.items() if not word.startswith("maybe_")},
        optional={
            word.removeprefix("maybe_"): value
            for word, value in drawn.items()
            if word.startswith("maybe_")
        },
    )


_LEAVES = st.one_of(
    _schema(type=st.sampled_from(["null", "boolean", "number", ["string", "null"]])),
    _schema(
        enum=st.lists(st.sampled_from(_VALUES), min_size=1, max_size=4),
        maybe_type=st.sampled_from(["string", "integer", ["null", "object"]]),
    ),
    _schema(const=st.sampled_from(_VALUES), maybe_title="t"),
    _schema(type="integer", maybe_minimum=_NUMBER, maybe_maximum=_NUMBER),
    _schema(type="integer", maybe_exclusiveMinimum=_NUMBER, maybe_exclusiveMaximum=_NUMBER),
    _schema(type="integer", multipleOf=st.integers(1, 30), maybe_minimum=_NUMBER),
    _schema(type="number", maybe_minimum=_DECIMAL, maybe_maximum=_DECIMAL),
    _schema(type="number", multipleOf=st.sampled_from([0.5, 0.25, 2]), maybe_maximum=_NUMBER),
    _schema(
        allOf=st.tuples(
            _schema(type="integer", maybe_minimum=_NUMBER),
            _schema(maximum=_NUMBER, maybe_multipleOf=st.integers(2, 9)),
        ).map(list)
    ),
    _schema(type="string", maxLength=_COUNT, maybe_minLength=_COUNT),
    _schema(type="string", pattern=st.sampled_from(["^[a-z]{1,8}$", "\\d+|x", "a."])),
    _schema(type="string", format=st.sampled_from(["date", "date-time", "uuid", "ipv4"])),
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        _schema(type="array", items=inner, maxItems=_COUNT, maybe_minItems=_COUNT),
        _schema(
            type="array", prefixItems=st.lists(inner, min_size=1, max_size=3), maybe_items=False
        ),
        _schema(
            type="object",
            properties=st.dictionaries(_NAMES, inner, min_size=1, max_size=4),
            maybe_required=st.lists(_NAMES, max_size=2, unique=True),
            maybe_additionalProperties=False,
        ),
        _schema(type="object", additionalProperties=inner, maxProperties=_COUNT),
        _schema(
            type="object",
            patternProperties=st.fixed_dictionaries(
                {"^a": inner}, optional={"^[bc][0-9]+$": inner, "z$": inner}
            ),
            maybe_properties=st.dictionaries(_NAMES, inner, min_size=1, max_size=2),
            additionalProperties=False,
        ),
        _schema(
            allOf=st.lists(
                _schema(
                    type="object",
                    properties=st.dictionaries(_NAMES, inner, min_size=1, max_size=2),
                    maybe_required=st.lists(_NAMES, max_size=1),
                ),
                min_size=2,
                max_size=2,
            )
        ),
        _schema(anyOf=st.lists(inner, min_size=1, max_size=3)),
        _schema(oneOf=st.lists(inner, min_size=2, max_size=2)),
    )


def draw_schemas(count: int) -> tuple[list[Any], int]:
    """Draw `count` different accepted schemas; return them and how many were refused."""
    drawn: dict[str, Any] = {}
    refused: set[str] = set()

    @settings(
        max_examples=count * 4,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.recursive(_LEAVES, _containers, max_leaves=6))
    def draw(schema: Any) -> None:
        try:
            drawn.setdefault(json_schema_text(schema), schema)
        except ConfigError:
            refused.add(repr(schema))

    draw()
    # Neighbours are variations of each other.
    return random.Random(0).sample(list(drawn.values()), count), len(refused)


REGEXES = [
    r"yes|no",
    r"(a|b)?c{2,3}",
    r"\d{3}-\d{4}",
    r"[A-Z][a-z]{1,9}( [A-Z][a-z]{1,9})?",
    r"^-?(0|[1-9]\d{0,4})(\.\d{1,2})?$",
    r"(?P<year>19|20)\d\d-(0[1-9]|1[0-2])",
    r"#[0-9a-fA-F]{6}",
    r"[^\s@]{1,8}@[a-z]{1,8}\.(com|org)",
    r"<b>[^<>]{0,12}</b>",
    r"(?:red|green|blue)(?:, (?:red|green|blue)){0,3}",
    r"\w{1,6}\W\w{1,6}?",
    r"Answer: .{1,20}",
    r"[\[\]^\\-]{1,6}",
    r"(?:\+49|0)[1-9]\d{2,6}|€[éèà]{1,3}",
    r"\"(?:\\.|[^\"\\]){0,10}\"",
    r"(?:ab|)*x",
]


# Each once took minutes to days, ended the process or held all its threads.
HOSTILE_REGEXES = {
    "unclosed classes": "[" * 50_000,
    "unclosed classes in a comment": f"(?#{'[' * 50_000})a",
    "unclosed classes, a last escape": "[" * 50_000 + "\\",
    "thousands of folded classes": "(?i:[\0-\U0010ffff])" * 10_000,
    "thousands of optional classes": r"\W?" * 20_000,
    "a count of 5,000 digits": f"a{{{'9' * 5_000}}}",
}
HOSTILE_SCHEMAS: dict[str, Any] = {
    "a name that backtracks": {
        "properties": {"a" * 40 + "!": {}},
        "patternProperties": {"^(a+)+$": {}},
        "type": "object",
    },
    "a long name and many patterns": {
        "type": "object",
        "properties": {"a" * 900_000: {}},
        "patternProperties": {f"^a*{number}$": {} for number in range(100)},
    },
    "500 patterns of names": {
        "patternProperties": {f"^a{number}[a-z]*$": {} for number in range(500)}
    },
    "30,000 required names": {"type": "object", "required": [f"p{n}" for n in range(30_000)]},
    "30,000 names that may come": {"properties": {f"p{n}": True for n in range(30_000)}},
    "a constant of 30,000 names": {"const": {f"p{n}": n for n in range(30_000)}},
    "30,000 required values of several types": {"required": [[], 1, "a"] * 10_000},
    "paths of a gigabyte": {
        "$defs": {
            name: {"properties": {f"p{n}": True for n in range(1_500)}}
            for name in ("x" * 400_000, "y" * 400_000)
        }
    },
    "patterns in a thousand places": {
        "properties": {
            f"p{n}": {"type": "string", "pattern": f"(?i:[\0-\U0010ffff])?{n}"}
            for n in range(1_500)
        }
    },
    **{name: {"type": "string", "pattern": text} for name, text in HOSTILE_REGEXES.items()},
}
