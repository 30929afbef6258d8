"""Checks JSON schemas, and values against a tool's schema.

Patterns of a schema are searched in bounded time: Python's `re` can take hours for forty
characters, and no other thread runs meanwhile.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING

from _inf.errors import ToolError, did_you_mean, shown
from _inf.types import JSON, Tool

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_FAULTS = 3
# For one match of a pattern in a schema, and for all of a check; it holds the event loop of a call.
PATTERN_SECONDS, PATTERNS_SECONDS = 0.2, 1.0
# In one check by a schema, which holds the event loop of a call. References can double at each
# level, so that it would take days.
MAX_REFERENCES = 20_000
MAX_FAULT_CHARACTERS = 300
REFERENCES = ("$ref", "$dynamicRef")
# What `nullable: true` beside it adds null to.
NULLABLE = ("$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type")
CHECKED = {*REFERENCES, *NULLABLE, "additionalProperties"}
# Keywords that search a schema's patterns in unbounded time.
UNCHECKED = ("patternProperties", "unevaluatedItems", "unevaluatedProperties")


def schema_fault(schema: Mapping[str, object]) -> str:
    """`.path: what is wrong there` with a JSON schema, in jsonschema's words where they say it; ""
    if nothing is."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        # In the schema of schemas, "anyOf" stands for "type" alone.
        fault = _type_fault(error.instance) if error.validator == "anyOf" else error.message
        return f"{error.json_path.removeprefix('$')}: {fault}"
    return ""


def _type_fault(type_: object) -> str:
    named = type_ if isinstance(type_, list) else [type_]
    for name in named:
        if name not in JSON_TYPES:
            hint = did_you_mean(name, JSON_TYPES) if isinstance(name, str) else ""
            return (
                f"{shown(name)} is not a JSON type{hint or '; they are ' + ', '.join(JSON_TYPES)}"
            )
    return f"{shown(named)} must name one JSON type or more, each once"


def argument_fault(tool: Tool, arguments: JSON) -> str | None:
    """Describe what in `arguments` breaks the tool's schema, for the model, in bounded time; None
    if nothing does."""
    try:
        found = validator(validator_class(), tool.parameters).iter_errors(arguments)
        errors = sorted(found, key=lambda error: error.json_path)
    except Exception as failure:
        return f"the schema of {tool.name} cannot be applied: {failure}"
    faults = []
    for error in errors[:MAX_FAULTS]:
        path = ".".join(map(str, error.absolute_path))
        faults.append(f"{path}: {error.message}".removeprefix(": ")[:MAX_FAULT_CHARACTERS])
    return "; ".join(faults) or None


_steps: ContextVar[Iterator[int]] = ContextVar("inf_schema_steps")  # counts those of a check
_pattern_end: ContextVar[float] = ContextVar("inf_schema_pattern_end")  # when its patterns must end


def count_step() -> None:
    """Raise `ToolError` if a check follows too many references."""
    if next(_steps.get()) > MAX_REFERENCES:
        raise ToolError(f"over {MAX_REFERENCES} references to follow")


def validator(of: type[Validator], parameters: Mapping[str, object]) -> Validator:
    """Return a validator of one check. With an empty registry, a "$ref" to a URL is an error and
    not a download."""
    from referencing import Registry

    _steps.set(itertools.count(1))
    _pattern_end.set(time.monotonic() + PATTERNS_SECONDS)
    return of(parameters, registry=Registry())


def _nothing(*_: object) -> tuple[()]:
    return ()


@functools.cache
def validator_class() -> type[Validator]:
    """JSON Schema with `nullable`, which Transformers writes for `int | None`, and with patterns of
    the package `regex`, whose time can be limited: `re` would hold the whole process, for hours.
    What names match a pattern is not checked, nor what else there may be then."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    known = Draft202012Validator.VALIDATORS

    def pattern(
        _: object, pattern: str, instance: object, schema: object
    ) -> Iterator[ValidationError]:
        if isinstance(instance, str) and not _matches(pattern, instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")

    def checked(
        keyword: str, validator: Validator, value: object, instance: object, schema: JSON
    ) -> Iterator[ValidationError]:
        if keyword in REFERENCES:
            count_step()
        null = keyword in NULLABLE and instance is None and schema.get("nullable") is True
        if not null and not (keyword == "additionalProperties" and "patternProperties" in schema):
            yield from known[keyword](validator, value, instance, schema) or ()

    own = {word: functools.partial(checked, word) for word in CHECKED}
    unchecked = dict.fromkeys(UNCHECKED, _nothing)
    kind: type[Validator] = extend(Draft202012Validator, {**own, **unchecked, "pattern": pattern})  # type: ignore[no-untyped-call]
    return kind


def _matches(pattern: str, text: str) -> bool:
    import regex

    left = max(0.001, min(PATTERN_SECONDS, _pattern_end.get() - time.monotonic()))
    try:
        found = regex.search(pattern, text, timeout=left, concurrent=True)
    except TimeoutError:
        took = f"the pattern {shown(pattern)} takes more than {PATTERN_SECONDS:g} seconds"
        raise TimeoutError(f"{took} to match {shown(text)}") from None
    return found is not None
