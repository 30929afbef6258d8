"""Which value a tool's schema makes of an argument that was written without quotes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from _inf.errors import ToolError
from _inf.tools.json_schemas import validator, validator_class

_ONE_OF_EACH_TYPE: tuple[Any, ...] = (None, True, 1, "text", [], {})


class ArgumentTypes:
    """Says which values a tool's schema takes for an argument, whatever the other arguments are. A
    schema that cannot be applied takes every value; one that takes too long raises `ToolError`."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    def take(self, key: str, value: object, *, by_type: bool = False) -> bool:
        """by_type: only the type must be right."""
        try:
            errors = validator(_validator_class(), self._parameters).iter_errors({key: value})
            return not any(_is_about(error, key, by_type=by_type) for error in errors)
        except ToolError:
            raise
        except Exception:  # a client's schema need not be one
            return True

    def chosen(self, key: str, text: str, value: object) -> Any:
        """Return the text where the schema takes text, otherwise the value that it was read as;
        the value, too, where the schema says nothing about the type."""
        if all(self.take(key, each) for each in _ONE_OF_EACH_TYPE):
            return value
        for by_type in (False, True):  # a wrong argument keeps the type that it should have
            for each in (text, value):
                if self.take(key, each, by_type=by_type):
                    return each
        return value


def _is_about(error: Any, key: str, *, by_type: bool) -> bool:
    """Whether an error of jsonschema is one of the argument, and not of those that are missing."""
    if error.validator in ("anyOf", "oneOf"):  # in a oneOf, more than one may fit here
        alternatives = itertools.groupby(error.context, key=lambda each: each.schema_path[0])
        faulty = [
            any(_is_about(each, key, by_type=by_type) for each in of_one)
            for _, of_one in alternatives
        ]
        return bool(faulty) and all(faulty)
    if error.validator == "additionalProperties":
        return True
    types = not by_type or error.validator in ("type", None)  # None: the schema is `false`
    return types and [*error.absolute_path][:1] == [key]


@functools.cache
def _validator_class() -> Any:
    """`validator_class` without what takes regexes, whose time is limited for each one only."""
    from jsonschema.validators import extend

    checks = validator_class().VALIDATORS

    def others(validator: Any, others: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from checks["additionalProperties"](validator, others, instance, schema)

    patterns = ("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties")
    own = dict.fromkeys(patterns, lambda *_: ()) | {"additionalProperties": others}
    return extend(validator_class(), own)  # type: ignore[no-untyped-call]
