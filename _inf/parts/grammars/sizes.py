"""The limits on the size of JSON schemas and regexes.

Beyond them Python or llguidance 0.7.30 takes minutes, or llguidance recurses so deeply that the
process ends: with a stack of 2 MiB at 8,000 names in one object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from _inf.errors import ConfigError

MAX_CHARACTERS = 1_000_000  # of a schema or a regex
MAX_SCHEMAS = 2_000  # llguidance compiles 5,000 properties in 12 s
MAX_VALUES = 20_000  # in a schema, at any depth
MAX_NAMES = 4_000  # different ones; in `required` each counts
MAX_ITEMS = 10_000  # and 100,000 items in 3 s
MAX_STEPS = 10_000  # of `multipleOf`: 999,999 take minutes
MAX_REPEATS = 10_000
MAX_PATTERNS = 200  # in `patternProperties`: llguidance compares each with each
MAX_OPERATORS = 3_000  # of all patterns together: 13,000 take 18 s
# A part of a regex: an escape, a class or a character. It never goes back, also where a class or an
# escape is not closed: its time is linear.
TOKEN = re.compile(r"\\.?|\[\^?\]?(?:\\.?|[^\]\\])*(?:\]|\Z)|.", re.DOTALL)
REPEATS = re.compile(r"[{,](\d+)(?=[,}])")
OPERATORS = frozenset("?*+{(.")


def check_length(text: str, key: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ConfigError.of(key, f"it has over {MAX_CHARACTERS} characters.")


def check_values(schema: object) -> None:
    """Check a document that is not yet known to be a schema: that check compiles patterns too."""
    names: set[str] = set()
    patterns: list[str] = []
    required = values = 0
    rest = [schema]
    while rest:
        value = rest.pop()
        inner: Sequence[object] = ()
        if isinstance(value, dict):
            names.update(value)
            items = value.get("required")
            required += len(items) if isinstance(items, list) else 0
            by_pattern = value.get("patternProperties")
            patterns += by_pattern if isinstance(by_pattern, dict) else ()
            pattern = value.get("pattern")
            patterns += [pattern] if isinstance(pattern, str) else []
            inner = list(value.values())
        elif isinstance(value, list):
            inner = value
        values += len(inner)
        rest += inner
        if values > MAX_VALUES:
            raise ConfigError.of("json_schema", f"it has over {MAX_VALUES} values inside it.")
        if len(names) + required > MAX_NAMES:
            raise ConfigError.of(
                "json_schema", f"it has over {MAX_NAMES} names, with those in `required`."
            )
    check_operators(patterns, "json_schema")


def check_schemas(schemas: Sequence[dict[str, Any]]) -> None:
    """Check what only a schema has: items, steps and patterns of names."""
    if sum(max(s.get("minItems", 0), s.get("maxItems", 0)) for s in schemas) > MAX_ITEMS:
        raise ConfigError(
            f"json_schema: minItems and maxItems add up to more than {MAX_ITEMS} items; give "
            "smaller bounds, or no maxItems."
        )
    steps = [Decimal(str(s["multipleOf"])).normalize() for s in schemas if "multipleOf" in s]
    places = max([0, *(-int(step.as_tuple().exponent) for step in steps)])
    if math.lcm(*(int(step.scaleb(places)) for step in steps)) > MAX_STEPS:
        raise ConfigError(
            "json_schema.multipleOf: without their decimal points, the least common multiple of "
            f"all of them is above {MAX_STEPS}; list the values in an enum."
        )
    if sum(len(part.get("patternProperties", ())) for part in schemas) > MAX_PATTERNS:
        raise ConfigError(
            f"json_schema.patternProperties: over {MAX_PATTERNS} patterns; use fewer."
        )


def check_operators(patterns: Sequence[str], key: str) -> None:
    """Bound the repeats, groups and classes of all patterns; characters cost little."""
    operators = 0
    for pattern in patterns:
        for token in TOKEN.findall(pattern):
            is_class = token[0] == "[" or (token[0] == "\\" and token[1:].isalnum())
            operators += is_class or token in OPERATORS
    if operators > MAX_OPERATORS:
        raise ConfigError.of(key, f"over {MAX_OPERATORS} repeats, groups and classes in patterns.")


def check_repeats(outside: str, where: str) -> None:
    """Bound the counts of a pattern; outside: its text without classes and escapes."""
    for count in REPEATS.findall(outside):
        if len(count.lstrip("0")) > len(str(MAX_REPEATS)) or int(count) > MAX_REPEATS:
            raise ConfigError.of(where, f"at most {MAX_REPEATS} repeats, or no bound at all.")
