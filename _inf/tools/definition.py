"""Makes `Tool`s from the items of `tools=`, and checks a call's arguments against the schema."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from _inf.errors import ToolError, at_fault, did_you_mean, error_text, shown, strip_punctuation
from _inf.tools.patterns import is_found, string_matcher
from _inf.types import Tool, ToolCall

Model = TypeVar("Model", bound=BaseModel)

JSON_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
MAX_FAULTS = 3
PATTERN_SECONDS = 0.2  # for one match of a pattern in a schema; it holds the event loop of a call
MAX_REFERENCES = 10_000  # in one check by a client's schema
MAX_FAULT_CHARACTERS = 300


@at_fault(key="tools")
def as_tools(items: object) -> list[Tool]:
    """Convert `tools=` of a call: a list of schemas, verl tools, Python functions and `Tool`s.

    Raises `ToolError`, which names the index and the field.
    """
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        raise ToolError(f"tools: {shown(items)} is not a list of schemas, functions or verl tools.")
    return listed_tools(items, "tools", lambda item, where: [as_tool(item, where)])


@at_fault(key="tools")
def shown_tools(schemas: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """Convert the schemas of a request whose caller runs the tools. Its `parameters` are shown to
    the model as they are: a grammar, if they become one, has its own checks."""

    def made(schema: Any, where: str) -> list[Tool]:
        if not isinstance(schema, Mapping):
            raise ToolError(f"{where}: {shown(schema)} is not a schema.")
        checked = checked_schema(schema, where, _ShownFunction)
        return [Tool(checked["function"]["name"], checked)]

    return listed_tools(schemas, "tools", made)


def listed_tools(
    items: Sequence[Any], where: str, make: Callable[[Any, str], Sequence[Tool]]
) -> list[Tool]:
    """Make the tools of each item of the list `where`; two with one name are refused."""
    tools: dict[str, Tool] = {}
    places: dict[str, str] = {}
    for index, item in enumerate(items):
        for tool in make(item, place := f"{where}[{index}]"):
            if tool.name in tools:
                raise ToolError(f"{place}: the name {tool.name!r} is taken by {places[tool.name]}.")
            tools[tool.name], places[tool.name] = tool, place
    return list(tools.values())


@contextlib.contextmanager
def refused(what: str, remedy: str = "") -> Iterator[None]:
    """Raise a `ToolError` for anything that code which is not ours raises."""
    try:
        yield
    except Exception as failure:
        raise ToolError(f"{what}: {error_text(failure)}.{remedy}") from failure


def as_tool(item: object, where: str) -> Tool:
    """Make a `Tool` from one item; where: its place, for messages."""
    verl = sys.modules.get("verl.tools.base_tool")  # not imported: the item is not a verl tool
    runs: dict[str, Any] = {}
    if isinstance(item, Tool):
        return item
    if isinstance(item, Mapping):
        schema = dict(item)
    elif verl is not None and isinstance(item, verl.BaseTool):
        runs = {"verl": item}
        with refused(f"{where}: {type(item).__name__}.get_openai_tool_schema() failed"):
            schema = item.get_openai_tool_schema().model_dump(exclude_unset=True, exclude_none=True)
    elif callable(item) and not isinstance(item, type):
        runs = {"function": item}
        schema = _function_schema(item, where)
    else:
        raise ToolError(f"{where}: {shown(item)} is not a schema, function or verl tool.")
    checked = checked_schema(schema, where)
    return Tool(checked["function"]["name"], checked, **runs)


def _function_schema(function: Callable[..., Any], where: str) -> dict[str, Any]:
    from transformers.utils import get_json_schema

    name = getattr(function, "__name__", type(function).__name__)
    remedy = " Give it a docstring whose Args section describes each parameter, and type hints."
    with refused(f"{where}: no schema can be made of the function {name!r}", remedy):
        return dict(get_json_schema(function))


def _plain_json(value: object) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {strip_punctuation(error)}") from None


def _checked_parameters(value: object) -> Any:
    if value is None:
        return {"type": "object", "properties": {}}
    if not isinstance(value, Mapping) or value.get("type") != "object":
        raise ValueError(
            f"{shown(value)} is not the JSON schema of an object; write "
            '{"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}'
        )
    parameters = _plain_json(value)
    try:
        fault = schema_fault(parameters)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if fault:
        raise ValueError(fault.lstrip(".: "))
    return parameters


def _any_parameters(value: object) -> Any:
    if value is None:
        return {"type": "object", "properties": {}}
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not a JSON schema")
    return _plain_json(value)


def schema_fault(schema: Any) -> str:
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


def _type_fault(type_: Any) -> str:
    named = type_ if isinstance(type_, list) else [type_]
    for name in named:
        if name not in JSON_TYPES:
            hint = did_you_mean(name, JSON_TYPES) if isinstance(name, str) else ""
            return f"{shown(name)} is no JSON type{hint or '; they are ' + ', '.join(JSON_TYPES)}"
    return f"{shown(named)} must name one JSON type or more, each once"


class _Function(BaseModel):
    """The inner part of a tool's schema. Transformers adds `return` for a Python function."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    description: str = ""
    parameters: Annotated[Any, BeforeValidator(_checked_parameters)] = Field(
        default=None, validate_default=True
    )
    strict: bool | None = None
    returns: Annotated[Any, BeforeValidator(_plain_json)] = Field(default=None, alias="return")


class _ShownFunction(_Function):
    """That of a tool which is only shown to the model: its schema need not be one."""

    parameters: Annotated[Any, BeforeValidator(_any_parameters)] = Field(
        default=None, validate_default=True
    )


class _Shell(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"] = "function"
    function: dict[str, Any]


def checked_schema(
    schema: Mapping[str, Any], where: str, form: type[_Function] = _Function
) -> dict[str, Any]:
    """Return a checked copy in OpenAI's form, with `type` and `function` added if missing."""
    named = isinstance(kind := schema.get("type"), str) and kind == "function"
    if isinstance(kind, str) and not named:
        raise ToolError(f"{where}.type: {shown(kind)} tools are not supported, only 'function'.")
    bare = {key: value for key, value in schema.items() if not (named and key == "type")}
    if "function" in schema:
        bare = validated(_Shell, schema, where).function
        where = f"{where}.function"
    function = validated(form, bare, where)
    whole = {"name", "description", "parameters"} | function.model_fields_set
    return {"type": "function", "function": function.model_dump(include=whole, by_alias=True)}


def validated(kind: type[Model], value: Mapping[str, Any], where: str) -> Model:
    """Validate `value` as the pydantic model `kind`; a `ToolError` names the first wrong field,
    after `where`, and shows its value unless the field has `repr=False`."""
    try:
        return kind.model_validate(dict(value))
    except ValidationError as error:
        first = error.errors()[0]
    path = ".".join([where, *(key if isinstance(key, str) else shown(key) for key in first["loc"])])
    if first["type"] in ("extra_forbidden", "invalid_key"):
        known = [field.alias or name for name, field in kind.model_fields.items()]
        hint = did_you_mean(path.rpartition(".")[2], known) or "."
        raise ToolError(f"{path}: no such field{hint} The fields are {', '.join(known)}.")
    if first["type"] == "value_error":  # our own message is complete
        said = str(first["ctx"]["error"])
        raise ToolError(f"{path}: {said}{'' if said.endswith('?') else '.'}")
    field = kind.model_fields.get(str(first["loc"][0])) if first["loc"] else None
    hidden = first["type"] == "missing" or (field is not None and not field.repr)
    shown_value = "" if hidden else f"{shown(first['input'])}: "
    raise ToolError(f"{path}: {shown_value}{strip_punctuation(first['msg'])}.")


def argument_fault(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Describe what in `arguments` breaks the tool's schema, for the model; None if nothing."""
    return _fault(_validator_class(), tool, arguments)


def strict_fault(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """`argument_fault` by a schema that a client sent and `json_schema_text` took, in bounded
    time; without `patternProperties`."""
    return _fault(_bounded_validator_class(), tool, arguments)


def _fault(validator_class: Any, tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    from referencing import Registry

    # With an empty registry, a "$ref" to a URL is an error and not a download.
    validator = validator_class(tool.parameters, registry=Registry())
    try:
        errors = sorted(validator.iter_errors(dict(arguments)), key=lambda error: error.json_path)
    except Exception as failure:
        return f"the schema of {tool.name} cannot be applied: {failure}"
    faults = []
    for error in errors[:MAX_FAULTS]:
        path = ".".join(map(str, error.absolute_path))
        faults.append(f"{path}: {error.message}".removeprefix(": ")[:MAX_FAULT_CHARACTERS])
    return "; ".join(faults) or None


@functools.cache
def _validator_class() -> Any:
    """JSON Schema with `nullable`, which Transformers writes for `int | None`, and with patterns of
    the package `regex`, whose time can be limited: `re` would hold the whole process, for hours."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    def type_or_null(validator: Any, types: Any, instance: Any, schema: Any) -> Any:
        if instance is None and schema.get("nullable") is True:
            return ()
        return Draft202012Validator.VALIDATORS["type"](validator, types, instance, schema)

    def pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Any:
        if isinstance(instance, str) and not _matches(pattern, instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")

    def pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Any:
        for name in instance if isinstance(instance, dict) else ():
            for each, subschema in patterns.items():
                if _matches(each, name):
                    yield from validator.descend(instance[name], subschema, path=name)

    def additional_properties(validator: Any, others: Any, instance: Any, schema: Any) -> Any:
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name in instance if isinstance(instance, dict) else ():
            if name not in known and not any(_matches(each, name) for each in patterns):
                if others is False:
                    yield ValidationError(
                        f"additional properties are not allowed ({name!r} was unexpected)"
                    )
                else:
                    yield from validator.descend(instance[name], others, path=name)

    keywords = {
        "type": type_or_null,
        "pattern": pattern,
        "patternProperties": pattern_properties,
        "additionalProperties": additional_properties,
    }
    return extend(Draft202012Validator, keywords)  # type: ignore[no-untyped-call]


def _matches(pattern: str, text: str) -> bool:
    import regex

    try:
        found = regex.search(pattern, text, timeout=PATTERN_SECONDS, concurrent=True)
    except TimeoutError:
        took = f"the pattern {shown(pattern)} takes more than {PATTERN_SECONDS:g} seconds"
        raise TimeoutError(f"{took} to match {shown(text)}") from None
    return found is not None


def _bounded_validator_class() -> Any:
    """`_validator_class` for one check by a client's schema: references that double, and patterns
    that backtrack, could take it days."""
    from jsonschema import Draft202012Validator, ValidationError
    from jsonschema.validators import extend

    follow, followed = Draft202012Validator.VALIDATORS["$ref"], itertools.count(1)

    def reference(validator: Any, target: str, instance: Any, schema: Any) -> Any:
        if next(followed) > MAX_REFERENCES:
            raise ToolError(f"over {MAX_REFERENCES} references to follow")
        yield from follow(validator, target, instance, schema)

    def pattern_is_found(validator: Any, pattern: str, instance: Any, schema: Any) -> Any:
        if isinstance(instance, str) and not is_found(string_matcher(pattern), instance):
            yield ValidationError(f"{shown(instance)} does not match {shown(pattern)}")

    own = {"$ref": reference, "pattern": pattern_is_found}
    return extend(_validator_class(), own)  # type: ignore[no-untyped-call]


def call_fault(call: ToolCall, tools: Mapping[str, Tool]) -> str | None:
    """Return the text for the model about a call that cannot be executed; None if it can."""
    if call.error is not None:
        return f"Error: the tool call could not be read: {strip_punctuation(call.error)}."
    if call.name not in tools:
        names = ", ".join(tools) or "none"
        return f"Error: there is no tool {shown(call.name)}; the tools are: {names}."
    if fault := argument_fault(tools[call.name], call.arguments):
        return f"Error: the arguments of {call.name} are wrong: {strip_punctuation(fault)}."
    return None
