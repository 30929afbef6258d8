"""Requests in OpenAI's form as `generate`'s keywords, which checks the ranges of values. A wrong
field is a `ConfigError` with its `key`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import core_schema

from _inf.config.other_names import named
from _inf.errors import ConfigError, did_you_mean, shown, value_fault
from _inf.request.keywords import KEYWORDS
from _inf.types import JSON

FormT = TypeVar("FormT", bound="RequestBody")


class UnknownKeyError(ConfigError):
    """A key that a request does not have; `key` is its whole path."""


def _end_at_first_fault(schema: object) -> None:
    """Set `fail_fast` in each list and dict of a pydantic schema."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema["fail_fast"] = True
        schema = [*schema.values()]
    for inner in schema if isinstance(schema, list) else ():
        _end_at_first_fault(inner)


class RequestBody(BaseModel):
    """An object with known keys only; null means absent. Its check ends at the first wrong item of
    a list and the first unknown key: pydantic would hold the interpreter for half a minute to say
    what is wrong with each of millions."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    # Keys that are taken, of any value, and left out.
    without_effect: ClassVar[Set[str]] = frozenset()
    # Whether errors name items of lists and members of unions too, as of deep bodies.
    whole_paths: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema = handler(source)
        _end_at_first_fault(schema)
        return schema

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: object) -> object:
        """Without what has no effect, and without unknown keys after the first."""
        if not isinstance(value, dict):
            return value
        names = {name for name, each in value.items() if each is not None}
        known = names.intersection(keys_of(cls))
        unknown = sorted(names - known - {*cls.without_effect})
        return {name: value[name] for name in [*known, *unknown[:1]]}


def keys_of(form: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in form.model_fields.items()]


class _Name(RequestBody):
    name: str


class NamedTool(RequestBody):
    """The `tool_choice` that asks for a call of one function."""

    type: Literal["function"]
    function: _Name


def with_keywords(names: Mapping[str, str]) -> Callable[[type[FormT]], type[FormT]]:
    """Add the keywords of `generate` that these fields of a request give, except those that the
    class declares itself."""

    def added(form: type[FormT]) -> type[FormT]:
        fields: JSON = {
            field: (KEYWORDS[name].kind | None, None)
            for field, name in names.items()
            if field not in form.model_fields
        }
        return create_model(form.__name__, __base__=form, __module__=form.__module__, **fields)

    return added


@with_keywords({name: name for name, row in KEYWORDS.items() if row.in_body and row.kind})
class Keywords(RequestBody):
    """The sampling keys of a request: OpenAI's, and `generate`'s, which are also the names that
    SGLang's and vLLM's servers accept."""

    logprob_token_ids: list[int] | None = None
    max_completion_tokens: int | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    response_format: JSON | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    # Not supported; accepted only at the value without effect.
    stream: Literal[False] | None = None
    parallel_tool_calls: Literal[True] | None = None
    modalities: list[Literal["text"]] | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Keywords:
        given = self.model_fields_set
        if {"max_tokens", "max_completion_tokens"} <= given:
            reason = "max_tokens is set too; remove one of them"
            raise ConfigError.of("max_completion_tokens", reason)
        if self.top_logprobs and not self.logprobs:
            raise ConfigError.of("top_logprobs", 'it needs "logprobs": true')
        if self.logprob_token_ids and (self.logprobs is None or self.logprobs is False):
            raise ConfigError.of("logprob_token_ids", "it needs logprobs, too")
        if self._schema() is not None and "json_schema" in given:
            raise ConfigError.of("response_format", "json_schema is set too; remove one of them")
        return self

    def listed(self, likeliest: int | None) -> int | None:
        """How many other tokens to list with each sampled one: those that are named, or so many of
        the likeliest; None: no log probs."""
        return len(self.logprob_token_ids or ()) or likeliest

    def keywords(self) -> JSON:
        """Return `generate`'s keywords; tools are schemas, whose calls the caller must run."""
        same = {name: value for name, value in self if name in KEYWORDS and name != "logprobs"}
        none = self.tool_choice == "none" and not same.get("tools")  # not the config's either
        renamed: JSON = {
            "logprobs": None if self.logprob_token_ids else self.top_logprobs or None,
            "max_tokens": self.max_completion_tokens,
            "json_schema": self._schema(),
            "tools": [] if none else None,
        }
        pairs = [*same.items(), *renamed.items()]
        return {name: value for name, value in pairs if value is not None}

    def _schema(self) -> JSON | None:
        match self.response_format:
            case None | {"type": "text"}:
                return None
            case {"type": "json_object"}:
                return {"type": "object"}
            case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
                return schema
        raise ConfigError.of(
            "response_format",
            f"{shown(self.response_format)} is none of text, json_object and "
            '{"type": "json_schema", "json_schema": {"schema": ...}}',
        )


# What concerns OpenAI's own business with a client.
ABOUT_THE_CLIENT = {"user", "metadata", "store", "service_tier", "safety_identifier"}
ABOUT_THE_CLIENT |= {"prompt_cache_key", "prompt_cache_retention"}


class ChatRequest(Keywords):
    messages: list[JSON]
    without_effect = ABOUT_THE_CLIENT
    temperature: Annotated[float, Field(le=2)] | None = None  # OpenAI's bound
    model: object = None  # it has no effect

    @property
    def likeliest(self) -> int | None:
        """How many other tokens to list with each sampled one; None: no log probs."""
        if not self.logprobs:
            return None
        return self.listed(self.top_logprobs or 0)


# What other servers' fields are here.
NOT_STORED = "; nothing is stored here; send the whole input"
INSTEAD = {
    **dict.fromkeys(("previous_response_id", "conversation"), NOT_STORED),
    "prompt_token_ids": "; /v1/completions takes token ids as its prompt, and /generate and "
    "/inference/v1/generate take them too",
}


def read(form: type[FormT], value: object) -> FormT:
    """`value` as a `form`, or a `ConfigError` about the first key that is wrong."""
    try:
        return form.model_validate(value)
    except ValidationError as failure:
        error = failure.errors()[0]
    path, known = _known_path(form, error["loc"])
    if form.whole_paths:
        end = -1 if error["type"] == "extra_forbidden" else None
        path = [*map(str, error["loc"][:end])]
    key = ".".join(path)
    match error["type"]:
        case "extra_forbidden":
            word = str(error["loc"][-1])
            key = ".".join([*path, word])
            instead = INSTEAD.get(word) or named(word, known) or did_you_mean(word, known)
            raise UnknownKeyError.of(key, f"unknown key{instead}")
        case "value_error":  # of a validator: a `ConfigError`
            fault, above = error["ctx"]["error"], f"{key}." if key else ""
            raise ConfigError(f"{above}{fault}", key=f"{above}{fault.key}")
        case "missing":
            reason = "it is missing"
        case "union_tag_not_found" | "union_tag_invalid":
            about = error["ctx"]
            key, kind = f"{key}.{about['discriminator'][1:-1]}", about.get("tag")
            only = f"{kind!r} is not supported; only {about.get('expected_tags')}"
            reason = only if kind else "it is missing"
        case _:
            reason = value_fault(error)
    raise ConfigError.of(key, reason)


def _known_path(form: type[BaseModel], place: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """Return the keys on the way to a place in a body, without members of unions and items of
    lists, and the keys of the last object on it."""
    path: list[str] = []
    for name in map(str, place):
        fields = {field.alias or key: field.annotation for key, field in form.model_fields.items()}
        if name not in fields:
            break
        path.append(name)
        kinds = [fields[name], *get_args(fields[name])]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            break
        form = inner[0]
    return path, keys_of(form)
