"""Converts an argument that was written without quotes, by the tool's schema."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from _inf.errors import ToolError
from _inf.tools.json_schemas import validator, validator_class

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_ONE_OF_EACH_TYPE: tuple[object, ...] = (None, True, 1, "text", [], {})
# Keywords that say where an argument's schema stands, and its type.
_OF_TYPES = "$ref $dynamicRef allOf anyOf oneOf properties additionalProperties type".split()


class ArgumentTypes:
    """Says which values a tool's schema takes for an argument, whatever the other arguments are. A
    schema that cannot be applied takes every value; one that takes too long raises `ToolError`."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        self._parameters = parameters

    def take(self, key: str, value: Any, *, by_type: bool = False) -> bool:
        """by_type: only the type must be right."""
        try:
            checks = validator(_for_one_argument(by_type), self._parameters)
            return checks.is_valid({key: value})
        except ToolError:
            raise
        except Exception:  # a client's schema need not be one
            return True

    def chosen(self, key: str, text: str, value: object) -> object:
        """Return the text where the schema takes text, otherwise the value that it was read as;
        the value, too, where the schema says nothing about the type."""
        if all(self.take(key, each) for each in _ONE_OF_EACH_TYPE):
            return value
        for by_type in (False, True):  # a wrong argument keeps the type that it should have
            for each in (text, value):
                if self.take(key, each, by_type=by_type):
                    return each
        return value


@functools.cache
def _for_one_argument(by_type: bool) -> type[Validator]:
    """`validator_class` for one argument alone: others are missing, and several alternatives may
    take it."""
    from jsonschema.validators import create

    known = validator_class().VALIDATORS
    names = _OF_TYPES if by_type else known.keys() - {"required", "minProperties", "pattern"}
    checks = {name: known[name] for name in names} | {"oneOf": known["anyOf"]}
    return create(validator_class().META_SCHEMA, checks)
