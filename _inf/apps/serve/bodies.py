"""The bodies of requests in OpenAI's form: their fields and bounds. Values that `generate` checks
are checked there. Fields that OpenAI does not have are vLLM's (main at 002032e,
`entrypoints/openai/completion/protocol.py` and `chat_completion/protocol.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator
from typing_extensions import Self

from _inf.apps.json_object import json_object
from _inf.apps.openai_requests import (
    ABOUT_THE_CLIENT,
    ChatRequest,
    Keywords,
    RequestBody,
    read,
)
from _inf.apps.serve.error_responses import by_field
from _inf.errors import ConfigError
from _inf.parts.grammars import Grammar
from _inf.types import JSON

MAX_CHOICES = 128  # of a prompt, as OpenAI's
MAX_PROMPT_LOGPROBS = 128  # for each token

BodyT = TypeVar("BodyT", bound=RequestBody)
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
Likeliest = Annotated[int, Field(ge=0, le=20)]
Scored = Annotated[int, Field(ge=0, le=MAX_PROMPT_LOGPROBS)]


def _as_parts(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


AsParts = BeforeValidator(_as_parts)  # a text is taken as a list of one part


class StreamOptions(RequestBody):
    """continuous_usage_stats: the usage so far in each event; without effect, as in vLLM, unless
    include_usage is true."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: Literal[False] | None = None  # there is none


class StructuredOutputs(RequestBody):
    """What the answer must match: one of the three."""

    json_: JSON | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _refuse_several(self) -> StructuredOutputs:
        if len(given := self._given) != 1:
            reason = f"{' and '.join(given)} are set" if given else "it is missing"
            raise ConfigError.of(given[1] if given else "json", f"{reason}; give one grammar")
        return self

    @property
    def _given(self) -> list[str]:
        return [*self.model_dump(by_alias=True, exclude_none=True)]

    def keywords(self) -> JSON:
        if self.json_ is not None:
            return {"json_schema": self.json_}
        return {"regex": self.regex or "|".join(map(re.escape, self.choice or ()))}

    @property
    def fields(self) -> dict[str, str]:
        """The field that gives a keyword of `generate`."""
        return {name: f"structured_outputs.{self._given[0]}" for name in self.keywords()}


class ServedKeywords(Keywords):
    """The fields that both routes have in addition to the sampling parameters."""

    without_effect = {"user"}
    fits: ClassVar[bool] = False
    stream: bool = False  # type: ignore[assignment]
    stream_options: StreamOptions | None = None
    n: Choices | None = None  # of vLLM's, as the next two
    prompt_logprobs: Scored | None = None
    structured_outputs: StructuredOutputs | None = None
    model: str | None = None
    best_of: int | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    parallel_tool_calls: bool | None = None  # type: ignore[assignment]
    reasoning_effort: str | None = None
    # Without effect: vLLM keeps the cached prefixes of several users apart, and here is one cache.
    cache_salt: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _refuse_outside_streams(self) -> ServedKeywords:
        if self.stream_options is not None and not self.stream:
            raise ConfigError.of("stream_options", 'it needs "stream": true')
        if self.stream and self.prompt_logprobs is not None:
            raise ConfigError.of("prompt_logprobs", "a stream does not give them")
        return self

    @model_validator(mode="after")
    def _refuse_several_of_a_kind(self) -> ServedKeywords:
        if self.best_of not in (None, self.n or 1):
            reason = f"answers are not ranked, so it must equal n, which is {self.n or 1}"
            raise ConfigError.of("best_of", reason)
        also = {*Grammar.keywords} & super().keywords().keys()
        if self.structured_outputs is not None and also:
            reason = f"{' and '.join(sorted(also & {'regex'}) or ['response_format'])} is set too"
            raise ConfigError.of("structured_outputs", f"{reason}; remove one of them")
        return self

    @property
    def fields(self) -> dict[str, str]:
        """The names of the fields that give `generate`'s keywords, where they are others."""
        found: dict[str, str] = {}
        if self.max_completion_tokens is not None:
            found["max_tokens"] = "max_completion_tokens"
        if self.response_format is not None:
            found["json_schema"] = "response_format.json_schema.schema"
        if self.structured_outputs is not None:
            found |= self.structured_outputs.fields
        if self.tool_choice not in (None, "auto", "none"):
            found["json_schema"] = "tools, as the schema of a call"
        return found

    @property
    def scored(self) -> int | None:
        """How many of the likeliest tokens to list with each of the prompt's; None: none."""
        return self.prompt_logprobs

    def keywords(self) -> JSON:
        given = super().keywords()
        if self.structured_outputs is not None:
            given |= self.structured_outputs.keywords()
        if self.scored is not None:
            given["prompt_logprobs"] = self.scored or True
        if self.reasoning_effort is not None:
            kwargs = given.get("chat_template_kwargs", {})
            given["chat_template_kwargs"] = {"reasoning_effort": self.reasoning_effort, **kwargs}
        return given


# What clients add to an answer's message, and send back with it: `parsed`, which repeats its text
# (openai 3.54.0, `.parse()` and `.stream()`), the response's other fields (litellm 1.106.2), places
# in a stream, and what other providers answer.
ADDITIONS = "parsed provider_specific_fields thinking_blocks extra_content id index".split()


def _as_answered(message: JSON) -> JSON:
    """The message without what a client added to it, and to its calls."""
    kept = {key: value for key, value in message.items() if key not in ADDITIONS}
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call_as_answered(call) for call in calls]
    return kept


def _call_as_answered(call: Any) -> Any:
    match call:
        case {"function": dict(function)}:
            kept = {key: call[key] for key in ("id", "type") if key in call}
            named = {key: function[key] for key in ("name", "arguments") if key in function}
            return {**kept, "function": named}
    return call


class ChatBody(ServedKeywords, ChatRequest):
    without_effect = ABOUT_THE_CLIENT
    temperature: Annotated[float, Field(le=2)] | None = None  # OpenAI's bound
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None  # True, unless the final message is continued
    # vLLM's and SGLang's: thoughts are given where `reasoning_parser` finds them, apart.
    include_reasoning: Literal[True] | None = None
    separate_reasoning: Literal[True] | None = None
    stream_reasoning: Literal[True] | None = None
    echo: bool = False  # vLLM's: an answer repeats a last message of the same role

    @model_validator(mode="after")
    def _refuse_two_ends(self) -> ChatBody:
        if self.echo and self.messages and self.messages[-1].get("role") == "assistant":
            raise ConfigError.of(
                "echo", "it is not supported if the last message is the assistant's; leave it out"
            )
        if self.add_generation_prompt and self.continue_final_message:
            raise ConfigError.of(
                "add_generation_prompt", "continue_final_message is set too; leave one of them out"
            )
        return self

    @field_validator("messages")
    @classmethod
    def _leave_out_additions(cls, messages: list[JSON]) -> list[JSON]:
        return [_as_answered(message) for message in messages]

    def keywords(self) -> JSON:
        begins = self.add_generation_prompt is not False
        return super().keywords() | {"add_generation_prompt": begins}

    def prompts(self) -> list[Any]:
        return [self.messages]


class Translated(RequestBody):
    """Makes a chat or completion of a request in another form. names: that form's, of
    `generate`'s keywords. sent: the request."""

    names: ClassVar[Mapping[str, str]]
    _sent: Any = None

    @classmethod
    def of(cls, sent: Any, template: str) -> Self:
        with by_field(cls.names):
            body = read(cls, sent.said(template))
        body._sent = sent
        return body

    @property
    def fields(self) -> dict[str, str]:
        own: dict[str, str] = super().fields  # type: ignore[misc]  # of the chat or completion
        return {**self.names, **own}


class TranslatedChat(Translated, ChatBody):
    """A limit of its answer beyond the model's context is cut to the room there is, as both other
    forms of chats do."""

    fits: ClassVar[bool] = True


def as_function(
    name: str, parameters: Mapping[str, object], description: str | None, strict: bool | None
) -> JSON:
    """A tool in the form of chats."""
    given = {"name": name, "description": description or None, "strict": strict}
    function = {key: value for key, value in given.items() if value is not None}
    return {"type": "function", "function": {**function, "parameters": parameters}}


def chat_content(parts: Sequence[JSON], between: str) -> str | list[JSON]:
    """The content of a message in a chat that has these parts: one text if all of them are."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return between.join(texts) if len(texts) == len(parts) else [*parts]


def template_kwargs(template: str, **wanted: object) -> JSON:
    """Those of the keywords that a model's chat template reads; clients send them to any model."""
    return {name: value for name, value in wanted.items() if value is not None and name in template}


def read_body(form: type[BodyT], body: bytes) -> BodyT:
    """Parse a request's body; a `ConfigError` names the first field that is wrong."""
    try:
        value = json_object(body)
    except ConfigError as failure:
        raise ConfigError.of("body", str(failure)) from None
    return read(form, value)
