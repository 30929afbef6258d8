"""Grammars for constrained answers: a JSON schema or a regex, checked before anything is sent.

In: what a caller gave. Out: the text that SGLang hands to xgrammar, respelt so that xgrammar
enforces all of it, or a `ConfigError` that says what cannot be enforced: nothing is ignored.
It knows nothing of tokens.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
from collections.abc import Iterator
from typing import Any

from _inf.errors import ConfigError, shown, unended
from _inf.request.pattern import respell
from _inf.request.scalars import key_path
from _inf.request.schema import rewritten


def json_schema_text(schema: Any) -> str:
    """Check a JSON schema, a dict or JSON text."""
    if isinstance(schema, str):
        return _checked_schema(schema)
    if not isinstance(schema, dict | bool):
        raise ConfigError(f"json_schema: {shown(schema)} is neither a dict nor JSON text.")
    try:
        return _checked_schema(json.dumps(schema, allow_nan=False))
    except ConfigError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"json_schema: it is not JSON: {unended(error)}.") from None


def regex_text(pattern: Any) -> str:
    """Check a regex, as Python's `re.fullmatch` reads it."""
    if not isinstance(pattern, str):
        raise ConfigError(f"regex: {shown(pattern)} is not a string.")
    return _checked_regex(pattern)


@functools.lru_cache(maxsize=64)
def _checked_regex(pattern: str) -> str:
    respelt = respell(pattern, "regex")
    if respelt.longest == 0:
        raise ConfigError(f"regex: {pattern!r} only matches an empty answer.")
    with _xgrammar("regex") as xgrammar:
        xgrammar.Grammar.from_regex(respelt.text)
    return respelt.text


@functools.lru_cache(maxsize=64)
def _checked_schema(text: str) -> str:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        schema = json.loads(text, parse_int=_small, parse_float=_finite, parse_constant=_no_number)
        Draft202012Validator.check_schema(schema)
        text = json.dumps(rewritten(schema))
    except SchemaError as error:
        path = key_path("json_schema", *error.absolute_path)
        raise ConfigError(f"{path}: {error.message} (JSON Schema draft 2020-12).") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"json_schema: it is not JSON: {unended(error)}.") from None
    except RecursionError:
        raise ConfigError("json_schema: it is nested too deeply.") from None
    with _xgrammar("json_schema") as xgrammar:
        xgrammar.Grammar.from_json_schema(text)
    return text


@contextlib.contextmanager
def _xgrammar(where: str) -> Iterator[Any]:
    """Importing xgrammar configures the root logger, which is the caller's."""
    handlers, level = list(logging.root.handlers), logging.root.level
    try:
        import xgrammar
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
    try:
        yield xgrammar
    except (RuntimeError, UnicodeError) as error:
        reason = str(error).splitlines()[0].rpartition(": ")[2].rstrip(".")
        raise ConfigError(f"{where}: xgrammar cannot compile it: {unended(reason)}.") from None


def _small(digits: str) -> int:
    if not -(2**63) < int(digits) < 2**63:
        raise ConfigError(f"json_schema: {digits} does not fit into 64 bits, which xgrammar has.")
    return int(digits)


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ConfigError(f"json_schema: {shown(digits)} is too large a number.")
    return number


def _no_number(name: str) -> Any:
    raise ConfigError(f"json_schema: it is not JSON: {name} is not a number there.")
