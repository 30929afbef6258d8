"""Grammars for constrained answers: a JSON schema or a regex, checked before anything is sent.

In: what a caller gave. Out: the text for SGLang's llguidance backend, or a `ConfigError`: nothing
is ignored. llguidance 0.7.30 says itself what it cannot enforce. Checked here is what it would let
pass: keywords it does not know, numbers that it rounds, regex syntax that means one thing in Rust
and another in Python, and sizes that take it minutes. It knows nothing of a model's tokens.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from _inf.errors import ConfigError, did_you_mean, shown, unended

if TYPE_CHECKING:
    from llguidance import LLTokenizer

KEYWORDS = frozenset(
    "$comment $defs $id $ref $schema additionalProperties allOf anyOf const default definitions"
    " deprecated description discriminator enum examples exclusiveMaximum exclusiveMinimum format"
    " items maxItems maxLength maxProperties maximum minItems minLength minProperties minimum"
    " multipleOf oneOf pattern patternProperties prefixItems properties readOnly required title"
    " type writeOnly".split()
)
SCHEMAS_BY_NAME = ("$defs", "definitions", "patternProperties", "properties")
SCHEMAS_IN_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
ONE_SCHEMA = ("additionalProperties", "items")
COMBINED = {"$ref", "anyOf", "oneOf", "properties"}
OPEN = {"additionalProperties", "patternProperties", "minProperties"}
# Those of `json.dumps`.
SEPARATORS = {"item_separator": ", ", "key_separator": ": "}
MOST_SCHEMAS = 2_000  # llguidance compiles 5,000 properties in 12 s
MOST_ITEMS = 10_000  # and 100,000 items in 3 s
MOST_STEPS = 10_000  # of `multipleOf`: 999,999 take it minutes
MOST_REPEATS = 10_000
MOST_NUMBER = 10**15  # its numbers are doubles
# Of a regex: an escape, a class or a character.
TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
NESTED_CLASS = re.compile(r"\[|&&|--|~~")
POSSESSIVE_OR_VERBOSE = re.compile(r"[*+?}]\+|\(\?[a-zA-Z-]*x")
ESCAPED_IN_JSON = re.compile(r'["\x00-\x1f]|\\[\\abfnrtuvx0-7]')
NUMERIC = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OF_STRINGS = ("pattern", "minLength", "maxLength")
REPEATS = re.compile(r"[{,](\d+)(?=[,}])")


def json_schema_text(schema: Any) -> str:
    """Check a JSON schema, a dict or JSON text."""
    if not isinstance(schema, dict | bool | str):
        raise ConfigError(f"json_schema: {shown(schema)} is neither a dict nor JSON text.")
    try:
        return _checked_schema(schema if isinstance(schema, str) else json.dumps(schema))
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("json_schema: it is nested too deeply.") from None
    except (TypeError, ValueError) as error:  # of `json` and of llguidance's own parser
        raise ConfigError(f"json_schema: it is not JSON: {unended(error)}.") from None


def regex_text(pattern: Any) -> str:
    """Check a regex, which the whole answer must match."""
    if not isinstance(pattern, str):
        raise ConfigError(f"regex: {shown(pattern)} is not a string.")
    return _checked_regex(pattern)


@functools.lru_cache(maxsize=64)
def _checked_regex(pattern: str) -> str:
    from llguidance import LLMatcher

    if not pattern.isprintable() and any("\ud800" <= each <= "\udfff" for each in pattern):
        raise ConfigError("regex: half of a surrogate pair is no character.")
    _check_pattern(pattern, "regex")
    _check_grammar("regex", LLMatcher.grammar_from_regex(pattern))
    return pattern


@functools.lru_cache(maxsize=64)
def _checked_schema(text: str) -> str:
    from jsonschema import Draft202012Validator, SchemaError
    from llguidance import LLMatcher

    if text.count("{") > MOST_SCHEMAS:
        raise ConfigError(f"json_schema: it has over {MOST_SCHEMAS} objects inside it.")
    schema = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        path = _key_path("json_schema", *error.absolute_path)
        raise ConfigError(f"{path}: {error.message} (JSON Schema draft 2020-12).") from None
    if schema is False:
        raise ConfigError("json_schema: nothing matches false.")
    schema = {} if schema is True else schema
    schemas = dict(_schemas(schema, "json_schema"))
    _check_sizes(list(schemas.values()))
    for path, each in schemas.items():
        _check_keywords(each, path)
    # Without $schema, which might name an older draft, whose rules were not checked.
    schema.pop("$schema", None)
    _check_grammar("json_schema", LLMatcher.grammar_from_json_schema(schema))
    _close_objects(list(schemas.values()))
    text = json.dumps({"x-guidance": SEPARATORS, **schema})
    _check_grammar("json_schema", LLMatcher.grammar_from_json_schema(text))
    return text


def _number(digits: str) -> float:
    """A number of a schema, if llguidance can tell it from every other one."""
    number = int(digits) if digits.lstrip("-").isdecimal() else float(digits)
    if not abs(number) <= MOST_NUMBER or float(f"{number:.15g}") != number:
        raise ConfigError(
            f"json_schema: {shown(digits)} is no number of up to 15 digits, beyond which "
            "llguidance rounds."
        )
    return number


def _key_path(path: str, *keys: str | int) -> str:
    return path + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def _schemas(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and those inside it, each with its path before it."""
    if isinstance(schema, bool):
        return
    yield path, schema
    for word, value in schema.items():
        inner: Any = ()
        if word in SCHEMAS_BY_NAME:
            inner = [((word, name), each) for name, each in value.items()]
        elif word in SCHEMAS_IN_LIST:
            inner = [((word, index), each) for index, each in enumerate(value)]
        elif word in ONE_SCHEMA:
            inner = [((word,), value)]
        for keys, each in inner:
            yield from _schemas(each, _key_path(path, *keys))


def _check_keywords(schema: dict[str, Any], path: str) -> None:
    from jsonschema import Draft202012Validator
    from llguidance import LLMatcher

    for word in schema:
        if word not in KEYWORDS or (word == "$id" and path != "json_schema"):
            known = word in Draft202012Validator.VALIDATORS or word in KEYWORDS
            hint = "" if known else did_you_mean(word, KEYWORDS)
            raise ConfigError(
                f"{_key_path(path, word)}: it cannot be enforced{hint or '; leave it out.'}"
            )
    if "pattern" in schema:
        _check_json_pattern(schema["pattern"], _key_path(path, "pattern"))
    for pattern in schema.get("patternProperties", ()):
        _check_json_pattern(pattern, _key_path(path, "patternProperties", pattern))
    for kind, words in (("number", NUMERIC), ("string", OF_STRINGS)):
        if words[0] in schema:  # llguidance sees too late that nothing matches
            own = {word: schema[word] for word in words if word in schema}
            _check_grammar(path, LLMatcher.grammar_from_json_schema({"type": kind, **own}))
    if schema.get("minProperties", 0) > len(schema.get("required", ())) + 1:
        raise ConfigError(
            f"{_key_path(path, 'minProperties')}: it cannot be enforced, because a name that is "
            "not declared may come twice; name the required properties."
        )


def _check_sizes(schemas: list[dict[str, Any]]) -> None:
    if sum(max(s.get("minItems", 0), s.get("maxItems", 0)) for s in schemas) > MOST_ITEMS:
        raise ConfigError(
            f"json_schema: minItems and maxItems add up to more than {MOST_ITEMS} items; give "
            "smaller bounds, or no maxItems."
        )
    steps = [Decimal(str(s["multipleOf"])).normalize() for s in schemas if "multipleOf" in s]
    places = max([0, *(-int(step.as_tuple().exponent) for step in steps)])
    if math.lcm(*(int(step.scaleb(places)) for step in steps)) > MOST_STEPS:
        raise ConfigError(
            "json_schema.multipleOf: without their decimal points, the least common multiple of "
            f"all of them is above {MOST_STEPS}; list the values in an enum."
        )


def _close_objects(schemas: list[dict[str, Any]]) -> None:
    """Leave out properties that are not declared, unless a schema asks for them or schemas are
    combined: a small model would invent more of them until it is cut."""
    if any("allOf" in each or len(COMBINED & each.keys()) > 1 for each in schemas):
        return
    for each in schemas:
        declared = set(each.get("properties", ()))
        if declared.issuperset(each.get("required", ())) and declared and not OPEN & each.keys():
            each["additionalProperties"] = False


def _check_pattern(pattern: str, where: str) -> None:
    """Refuse a regex that Python reads in another way than Rust, or that counts too far."""
    tokens = TOKEN.findall(pattern)
    outside = "".join(token if len(token) == 1 else "x" for token in tokens)
    nested = any(NESTED_CLASS.search(re.sub(r"\\.", "x", each[1:])) for each in _classes(tokens))
    if nested or POSSESSIVE_OR_VERBOSE.search(outside):
        raise ConfigError(
            f"{where}: {shown(pattern)} has a possessive repeat, the flag x, or [ && -- ~~ inside "
            "a class, which Python and Rust read differently; spell it without, or escape these."
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        reason = f"is no regular expression: {unended(error)}"
        raise ConfigError(f"{where}: {shown(pattern)} {reason}.") from None
    if any(int(count) > MOST_REPEATS for count in REPEATS.findall(outside)):
        raise ConfigError(f"{where}: at most {MOST_REPEATS} repeats, or no bound at all.")


def _check_json_pattern(pattern: str, where: str) -> None:
    """llguidance 0.7.30 (`json_quote` of its regexes) is wrong about what JSON escapes: after
    such a character it loses a class, and a class with a newline has quote and backslash too."""
    _check_pattern(pattern, where)
    tokens = TOKEN.findall(pattern)
    wrong = any(
        re.match(each, "\n") and not (re.match(each, '"') and re.match(each, "\\"))
        for each in _classes(tokens)
    )
    if wrong or any(ESCAPED_IN_JSON.match(each) for each in tokens):
        raise ConfigError(
            f"{where}: {shown(pattern)} has a character that JSON escapes, or a class with all "
            "but a quote or a backslash, which cannot be enforced; say what is allowed in classes."
        )


def _classes(tokens: list[str]) -> list[str]:
    return [each for each in tokens if len(each) > 1 and each[0] == "["]


@functools.cache
def _bytes_as_tokens() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _check_grammar(where: str, grammar: str) -> None:
    """Compile it and take its first step, by which llguidance has met most of its own limits."""
    from llguidance import LLMatcher

    tokenizer = _bytes_as_tokens()
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    if not matcher.is_error():
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if allowed == 1 << tokenizer.eos_token:
            raise ConfigError(f"{where}: nothing matches it, or only an empty answer.")
        matcher.consume_token((allowed & -allowed).bit_length() - 1)
        matcher.compute_bitmask()
    if error := matcher.get_error():
        detail = re.search(r"^error: (.*)$", error, re.MULTILINE)
        first = error.splitlines()[0].rpartition("(in regex): ")[2]
        reason = unended(detail[1] if detail else first)
        raise ConfigError(f"{where}: llguidance cannot enforce it: {reason}.")
