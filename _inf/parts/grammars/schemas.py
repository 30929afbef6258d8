"""Checks JSON schemas and regexes, so that nothing in them is ignored.

llguidance 0.7.30 reports most things that it cannot enforce. This module checks what it does not
report: unknown keywords, numbers that it rounds, regex syntax with different meanings in Rust and
Python; `sizes` has the limits on sizes. No text of a caller is searched for a caller's
pattern by Python's `re`, which can take hours and stops all other threads.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from _inf.errors import ConfigError, check_unicode, did_you_mean, shown, strip_punctuation
from _inf.parts.grammars.formats import replace_formats
from _inf.parts.grammars.sizes import (
    MAX_SCHEMAS,
    TOKEN,
    check_length,
    check_operators,
    check_repeats,
    check_schemas,
    check_values,
)
from _inf.runtime import quiet
from _inf.tools.json_schemas import schema_fault
from _inf.types import python_value

if TYPE_CHECKING:
    from llguidance import LLTokenizer

SCHEMA_KEYWORDS = frozenset(
    "$comment $defs $id $ref $schema additionalProperties allOf anyOf const default definitions"
    " deprecated description discriminator enum examples exclusiveMaximum exclusiveMinimum format"
    " items maxItems maxLength maxProperties maximum minItems minLength minProperties minimum"
    " multipleOf oneOf pattern patternProperties prefixItems properties readOnly required title"
    " type uniqueItems writeOnly".split()
)
SCHEMAS_BY_NAME = ("$defs", "definitions", "patternProperties", "properties")
SCHEMAS_IN_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
ONE_SCHEMA = ("additionalProperties", "items")
COMBINED = {"$ref", "anyOf", "oneOf", "properties"}
OPEN = {"additionalProperties", "patternProperties", "minProperties"}
# The separators of `json.dumps`.
SEPARATORS = {"item_separator": ", ", "key_separator": ": "}
MAX_NUMBER = 10**15  # llguidance's numbers are doubles
NESTED_CLASS = re.compile(r"\[|&&|--|~~")
POSSESSIVE_OR_VERBOSE = re.compile(r"[*+?}]\+|\(\?[a-zA-Z-]*x")
ESCAPED_IN_JSON = re.compile(r'["\x00-\x1f]|\\[\\abfnrtuvx0-7]')
NUMERIC = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OF_STRINGS = ("pattern", "minLength", "maxLength")


def json_schema_text(schema: object) -> str:
    if not isinstance(schema, dict | bool | str):
        raise ConfigError.of("json_schema", f"{shown(schema)} is neither a dict nor JSON text.")
    try:
        text = schema if isinstance(schema, str) else json.dumps(python_value(schema))
        text, unenforced = _checked_schema(text)
        for path in unenforced:
            quiet.warn(f"{path}: it is not enforced, so an answer may repeat items.")
        return text
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError.of("json_schema", "it is nested too deeply.") from None
    except (TypeError, ValueError) as error:  # from `json` and from llguidance's own parser
        raise ConfigError(f"json_schema: it is not JSON: {strip_punctuation(error)}.") from None


def regex_text(pattern: object) -> str:
    """Check a regex, which the whole answer must match."""
    if not isinstance(pattern, str):
        raise ConfigError.of("regex", f"{shown(pattern)} is not a string.")
    return _checked_regex(pattern)


@functools.lru_cache(maxsize=64)
def _checked_regex(pattern: str) -> str:
    check_unicode(pattern, "regex: it", key="regex")
    check_length(pattern, "regex")
    check_operators([pattern], "regex")
    _check_pattern(pattern, "regex")
    _check_grammar("regex", "regex", pattern)
    return pattern


@functools.lru_cache(maxsize=64)
def _checked_schema(text: str) -> tuple[str, list[str]]:
    """Return the schema that llguidance gets, and the paths of what it does not enforce."""
    check_length(text, "json_schema")
    if text.count("{") > MAX_SCHEMAS:
        raise ConfigError.of("json_schema", f"it has over {MAX_SCHEMAS} objects inside it.")
    schema = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_number)
    check_values(schema)
    if fault := schema_fault(schema):
        end = "" if fault.endswith("?") else " (JSON Schema draft 2020-12)."
        raise ConfigError(f"json_schema{fault}{end}")
    if schema is False:
        raise ConfigError.of("json_schema", "nothing matches false.")
    schema = {} if schema is True else schema
    schemas = [part for _, part in _schemas(schema, "json_schema") if isinstance(part, dict)]
    check_schemas(schemas)
    unenforced = [
        f"{path}.uniqueItems"
        for path, part in _schemas(schema, "json_schema")
        if isinstance(part, dict) and part.pop("uniqueItems", False)
    ]
    replace_formats(schemas)
    for path, part in _schemas(schema, "json_schema"):
        if isinstance(part, dict):
            _check_keywords(part, path)
    # $schema is removed: it might name an older draft, whose rules were not checked.
    schema.pop("$schema", None)
    _check_grammar("json_schema", "json_schema", schema)
    _close_objects(schemas)
    text = json.dumps({"x-guidance": SEPARATORS, **schema})
    _check_grammar("json_schema", "json_schema", text)
    return text, unenforced


def _number(digits: str) -> float:
    """Return a number of a schema, or raise if llguidance would round it."""
    number = int(digits) if digits.lstrip("-").isdecimal() else float(digits)
    if not abs(number) <= MAX_NUMBER or float(f"{number:.15g}") != number:
        raise ConfigError(
            f"json_schema: {shown(digits)} is not a number of at most 15 digits; "
            "llguidance rounds longer ones."
        )
    return number


def _schemas(schema: Any, path: str) -> Iterator[tuple[str, dict[str, Any] | bool]]:
    """Yield all schemas and their paths, one at a time: all paths together, of long names and many
    levels, could take a gigabyte."""
    yield path, schema
    for word, value in () if isinstance(schema, bool) else schema.items():
        here = f"{path}.{word}"
        inner: Iterable[tuple[str, object]] = ()
        if word in SCHEMAS_BY_NAME:
            inner = ((f"{here}.{name}", item) for name, item in value.items())
        elif word in SCHEMAS_IN_LIST:
            inner = ((f"{here}[{index}]", item) for index, item in enumerate(value))
        elif word in ONE_SCHEMA:
            inner = ((here, value),)
        for where, item in inner:
            yield from _schemas(item, where)


def embedded(schema: dict[str, object], place: str) -> dict[str, object]:
    """Return a copy of a schema that `json_schema_text` takes, which can stand at a place in
    another one, such as `/properties/a`: its references lead to its own parts there."""
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    copy.pop("$schema", None)
    own = copy.pop("$id", "").rstrip("#")
    for _, part in _schemas(copy, ""):
        if isinstance(part, dict) and "$ref" in part:
            document, _, pointer = part["$ref"].partition("#")
            if urljoin(own, document) == own:
                part["$ref"] = f"#{place}{pointer}"
    return copy


def _check_keywords(schema: dict[str, Any], path: str) -> None:
    from jsonschema import Draft202012Validator

    for word in schema:
        if word not in SCHEMA_KEYWORDS or (word == "$id" and path != "json_schema"):
            known = word in Draft202012Validator.VALIDATORS or word in SCHEMA_KEYWORDS
            hint = "" if known else did_you_mean(word, SCHEMA_KEYWORDS)
            raise ConfigError(f"{path}.{word}: it cannot be enforced{hint or '; leave it out.'}")
    if "pattern" in schema:
        _check_json_pattern(schema["pattern"], f"{path}.pattern")
    if schema.get("properties") and schema.get("patternProperties"):
        raise ConfigError(
            f"{path}.patternProperties: it cannot be enforced together with properties, because "
            "llguidance checks a property only against its own schema; leave one of the two out."
        )
    for pattern in schema.get("patternProperties", ()):
        _check_json_pattern(pattern, f"{path}.patternProperties.{pattern}")
    for kind, words in (("number", NUMERIC), ("string", OF_STRINGS)):
        if words[0] in schema:  # llguidance notices too late that nothing matches
            limits = {word: schema[word] for word in words if word in schema}
            _check_grammar(path, "json_schema", {"type": kind, **limits})
    if schema.get("minProperties", 0) > len(schema.get("required", ())) + 1:
        raise ConfigError(
            f"{path}.minProperties: it cannot be enforced, because a name that is not declared may "
            "come twice; name the required properties."
        )


def _close_objects(schemas: list[dict[str, Any]]) -> None:
    """Forbid undeclared properties, unless a schema asks for them or schemas are combined: a small
    model would invent more and more of them until max_tokens."""
    if any("allOf" in part or len(COMBINED & part.keys()) > 1 for part in schemas):
        return
    for part in schemas:
        declared = set(part.get("properties", ()))
        if declared.issuperset(part.get("required", ())) and declared and not OPEN & part.keys():
            part["additionalProperties"] = False


def _check_pattern(pattern: str, where: str) -> None:
    """Refuse a regex that Python and Rust read differently, or with too large counts."""
    tokens = TOKEN.findall(pattern)
    outside = "".join(token if len(token) == 1 else "x" for token in tokens)
    nested = any(NESTED_CLASS.search(re.sub(r"\\.", "x", part[1:])) for part in _classes(tokens))
    if nested or POSSESSIVE_OR_VERBOSE.search(outside):
        raise ConfigError(
            f"{where}: {shown(pattern)} has a possessive repeat, the flag x, or [ && -- ~~ inside "
            "a class, which Python and Rust read differently; avoid or escape these."
        )
    check_repeats(outside, where)
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        reason = f"is not a regular expression: {strip_punctuation(error)}"
        raise ConfigError.of(where, f"{shown(pattern)} {reason}.") from None


def _check_json_pattern(pattern: str, where: str) -> None:
    """Refuse patterns for which llguidance 0.7.30 is wrong about JSON's escapes (`json_quote`): it
    loses a class after such a character, and adds quote and backslash to one with a newline."""
    _check_pattern(pattern, where)
    tokens = TOKEN.findall(pattern)
    wrong = any(
        re.match(part, "\n") and not (re.match(part, '"') and re.match(part, "\\"))
        for part in _classes(tokens)
    )
    if wrong or any(ESCAPED_IN_JSON.match(token) for token in tokens):
        raise ConfigError(
            f"{where}: {shown(pattern)} has a character that JSON escapes, or a class that "
            "excludes only a quote or a backslash, which cannot be enforced; list the characters "
            "that a class allows."
        )


def _classes(tokens: list[str]) -> list[str]:
    return [token for token in tokens if len(token) > 1 and token[0] == "["]


@functools.cache
def _bytes_as_tokens() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _check_grammar(where: str, kind: str, source: Any) -> None:
    """Compile a "regex" or "json_schema" and take its first step, which reveals most of
    llguidance's limits."""
    from llguidance import LLMatcher

    of = LLMatcher.grammar_from_regex if kind == "regex" else LLMatcher.grammar_from_json_schema
    tokenizer, compiled = _bytes_as_tokens(), of(source)
    matcher = LLMatcher(tokenizer, compiled, log_level=0)
    if not matcher.is_error():
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if allowed == 1 << tokenizer.eos_token:
            raise ConfigError.of(where, "nothing matches it, or only an empty answer.")
        matcher.consume_token((allowed & -allowed).bit_length() - 1)
        matcher.compute_bitmask()
    if error := matcher.get_error():
        detail = re.search(r"^error: (.*)$", error, re.MULTILINE)
        first = error.splitlines()[0].rpartition("(in regex): ")[2]
        reason = strip_punctuation(detail[1] if detail else first)
        raise ConfigError.of(where, f"llguidance cannot enforce it: {reason}.")
