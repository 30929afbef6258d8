"""Makes `Tool`s from the items of `tools=`, and says which calls of them cannot be executed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from _inf.errors import (
    ToolError,
    at_fault,
    did_you_mean,
    error_text,
    shown,
    strip_punctuation,
    value_fault,
)
from _inf.tools.json_schemas import argument_fault, schema_fault
from _inf.types import JSON, Tool, ToolCall, as_list, python_value

Model = TypeVar("Model", bound=BaseModel)
UNDESCRIBED = "no description"
VERLS_METHODS = ("get_openai_tool_schema", "create", "execute", "calc_reward", "release")


@at_fault(key="tools")
def as_tools(items: object) -> list[Tool]:
    """Convert `tools=` of a call: a list of schemas, verl tools, Python functions and `Tool`s.

    Raises `ToolError`, which names the index and the field.
    """
    items = as_list(items)
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        raise ToolError(f"tools: {shown(items)} is not a list of schemas, functions or verl tools.")
    return listed_tools(items, "tools", lambda item, where: [as_tool(item, where)])


@at_fault(key="tools")
def shown_tools(schemas: Sequence[Mapping[str, object]]) -> list[Tool]:
    """Convert the schemas of a request whose caller runs the tools. Its `parameters` are shown to
    the model as they are: a grammar, if they become one, has its own checks."""

    def made(schema: object, where: str) -> list[Tool]:
        if not isinstance(schema, Mapping):
            raise ToolError(f"{where}: {shown(schema)} is not a schema.")
        checked = checked_schema(schema, where, _any_parameters)
        return [Tool(checked["function"]["name"], checked)]

    return listed_tools(schemas, "tools", made)


def listed_tools(
    items: Sequence[object], where: str, make: Callable[[object, str], Sequence[Tool]]
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


def as_tool(item: Any, where: str) -> Tool:
    """Make a `Tool` from one item; where: its place, for messages."""
    runs: JSON = {}
    if isinstance(item, Tool):
        return item
    if isinstance(item, Mapping):
        schema = dict(item)
    elif not isinstance(item, type) and is_verls(item):
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


def is_verls(tool: object) -> bool:
    """Whether an object or a class has the methods of verl's `BaseTool`; its base class is another
    where verl is not installed."""
    return all(callable(getattr(tool, name, None)) for name in VERLS_METHODS)


def _function_schema(function: Callable[..., object], where: str) -> JSON:
    """Make a schema of type hints, and of the descriptions that a docstring in Google style has."""
    from transformers.utils import get_json_schema

    name = getattr(function, "__name__", None)
    if name is None:  # of functools.partial, or an object with __call__
        raise ToolError(f"{where}: {shown(function)} has no name; call it in a function with one.")
    remedy = " Give each parameter a type hint."
    with refused(f"{where}: no schema can be made of the function {name!r}", remedy):
        schema = dict(get_json_schema(_described(function)))
    inside = schema["function"]
    for each in (inside, *inside["parameters"]["properties"].values()):
        if each["description"] == UNDESCRIBED:
            del each["description"]
    return schema


def _described(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function whose docstring has a description of each parameter, which Transformers
    wants; `UNDESCRIBED` where there is none."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    text = inspect.getdoc(function) or ""
    main, known, returned = parse_google_format_docstring(f"\n{text.strip()}")
    args = {name: (known or {}).get(name) for name in inspect.signature(function).parameters}
    if main and all(args.values()):
        return function

    @functools.wraps(function)
    def described() -> None: ...

    described.__name__ = function.__name__
    lines = [f"    {name}: {said or UNDESCRIBED}" for name, said in args.items()]
    ends = ["", "Returns:", f"    {returned}"] if returned else []
    described.__doc__ = "\n".join([main or UNDESCRIBED, "", "Args:", *lines, *ends])
    return described


def _plain_json(value: object) -> object:
    try:
        return json.loads(json.dumps(python_value(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {strip_punctuation(error)}") from None


def _any_parameters(value: object) -> str:
    return "" if isinstance(value, dict) else f"{shown(value)} is not a JSON schema"


def _parameters_fault(value: object) -> str:
    """Why a value is not the schema of a tool's arguments; "" if it is."""
    if not isinstance(value, dict) or value.get("type") != "object":
        return (
            f"{shown(value)} is not the JSON schema of an object; write "
            '{"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}'
        )
    try:
        return schema_fault(value).lstrip(".: ")
    except RecursionError:
        return "it is nested too deeply"


class _Function(BaseModel):
    """The inner part of a tool's schema. Transformers adds `return` for a Python function."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")]
    description: str = ""
    parameters: Annotated[object, BeforeValidator(_plain_json)] = None
    strict: bool | None = None
    returns: Annotated[object, BeforeValidator(_plain_json)] = Field(default=None, alias="return")


class _Shell(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["function"] = "function"
    function: JSON


def checked_schema(
    schema: Mapping[str, object], where: str, fault: Callable[[object], str] = _parameters_fault
) -> JSON:
    """Return a checked copy in OpenAI's form, with `type` and `function` added if missing. fault:
    what is wrong with its parameters."""
    named = isinstance(kind := schema.get("type"), str) and kind == "function"
    if isinstance(kind, str) and not named:
        raise ToolError(f"{where}.type: {shown(kind)} tools are not supported, only 'function'.")
    bare = {key: value for key, value in schema.items() if not (named and key == "type")}
    if "function" in schema:
        bare = validated(_Shell, schema, where).function
        where = f"{where}.function"
    function = validated(_Function, bare, where)
    if function.parameters is None:
        function.parameters = {"type": "object", "properties": {}}
    if wrong := fault(function.parameters):
        raise ToolError(f"{where}.parameters: {wrong}{'' if wrong.endswith('?') else '.'}")
    whole = {"name", "description", "parameters"} | function.model_fields_set
    return {"type": "function", "function": function.model_dump(include=whole, by_alias=True)}


def validated(kind: type[Model], value: Mapping[str, object], where: str) -> Model:
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
    raise ToolError(f"{path}: {strip_punctuation(first['msg']) if hidden else value_fault(first)}.")


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
