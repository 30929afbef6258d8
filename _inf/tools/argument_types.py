"""Which value a tool's schema makes of an argument that was written without quotes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from _inf.errors import ToolError
from _inf.tools.json_schemas import count_step, validator, validator_class

# These say nothing about the type of one argument, or take regexes of unlimited time.
_IGNORED = {
    *("required", "minProperties", "dependentRequired", "dependentSchemas", "propertyNames"),
    *("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties"),
}
_OF_TYPES = {
    *("$ref", "$dynamicRef", "additionalProperties", "allOf", "anyOf", "oneOf", "properties"),
    "type",
}
_ONE_OF_EACH_TYPE: tuple[Any, ...] = (None, True, 1, "text", [], {})


class ArgumentTypes:
    """Says which values a tool's schema takes for an argument, whatever the other arguments are. A
    schema that cannot be applied takes every value; one that takes too long raises `ToolError`."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    @functools.cached_property
    def _validators(self) -> list[Any]:
        return [validator(each, self._parameters) for each in _validator_classes()]

    def take(self, key: str, value: object, *, by_type: bool = False) -> bool:
        """by_type: only the type must be right."""
        try:
            return bool(self._validators[by_type].is_valid({key: value}))
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


@functools.cache
def _validator_classes() -> tuple[Any, Any]:
    """The validators of values and of types. Alternatives of `oneOf` may differ only in what is
    ignored here, so more than one may fit."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    def any_of(validator: Any, schemas: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if instance is None and schema.get("nullable") is True:
            return
        for each in schemas:
            count_step()
            if validator.evolve(schema=each).is_valid(instance):
                return
        yield ValidationError("no alternative takes it")

    def others(validator: Any, others: Any, instance: Any, schema: Any) -> Iterator[Any]:
        for name in instance if isinstance(instance, dict) else ():
            if name not in schema.get("properties", ()) and "patternProperties" not in schema:
                yield from validator.descend(instance[name], others)

    def ignored(*_: Any) -> tuple[()]:
        return ()

    own = {"anyOf": any_of, "oneOf": any_of, "additionalProperties": others}
    made: Any = extend
    of_values = made(validator_class(), own | dict.fromkeys(_IGNORED, ignored))
    rest = Draft202012Validator.VALIDATORS.keys() - _OF_TYPES
    return of_values, made(of_values, dict.fromkeys(rest, ignored))
