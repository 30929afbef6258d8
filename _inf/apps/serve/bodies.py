"""The bodies of requests: their fields and bounds. Values that `generate` checks are checked
there."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from _inf.apps.openai_format import ChatRequest, Keywords, RequestBody, json_object, read
from _inf.errors import ConfigError

MAX_CHOICES = 128  # of a prompt, as OpenAI's

BodyT = TypeVar("BodyT", bound=RequestBody)


class StreamOptions(RequestBody):
    include_usage: bool = False


class ServedKeywords(Keywords):
    """The fields that both routes have besides the sampling parameters; the names that OpenAI does
    not have are vLLM's."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None  # type: ignore[assignment]
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    prompt_logprobs: Literal[0] | None = None
    user: Any = None  # it has no effect

    @model_validator(mode="after")
    def _refuse_outside_streams(self) -> ServedKeywords:
        if self.stream_options is not None and not self.stream:
            raise ConfigError.of("stream_options", 'it needs "stream": true')
        if self.prompt_logprobs is not None and self.stream:
            raise ConfigError.of("prompt_logprobs", "a stream does not give them")
        return self

    @field_validator("chat_template_kwargs", check_fields=False)
    @classmethod
    def _refuse_templates(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A template is a program: its loops could keep a thread busy for ever."""
        if "chat_template" in kwargs:
            raise ConfigError.of(
                "chat_template",
                "a request cannot bring a template; change the one in the model's folder",
            )
        return kwargs

    def keywords(self) -> dict[str, Any]:
        scored = {} if self.prompt_logprobs is None else {"prompt_logprobs": True}
        return super().keywords() | scored


class ChatBody(ServedKeywords, ChatRequest):
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None  # OpenAI's bounds

    def prompts(self) -> list[Any]:
        return [self.messages]


class CompletionBody(ServedKeywords):
    """The body of `/v1/completions`. prompt: text or token ids, or several of them."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None  # type: ignore[assignment]
    echo: Literal[False] | None = None

    @model_validator(mode="after")
    def _refuse_fields_of_chats(self) -> CompletionBody:
        for name in ("tools", "tool_choice", "chat_template_kwargs"):
            if getattr(self, name) is not None:
                raise ConfigError.of(name, "only /v1/chat/completions has it")
        return self

    @property
    def likeliest(self) -> int | None:
        """How many likely tokens to list beside each sampled one; None: no log probs."""
        return self.logprobs

    def keywords(self) -> dict[str, Any]:
        return super().keywords() | ({"logprobs": self.logprobs} if self.logprobs else {})

    def prompts(self) -> list[Any]:
        given: list[Any] = [self.prompt]
        if isinstance(self.prompt, list) and not isinstance(next(iter(self.prompt), 0), int):
            given = self.prompt
        return [{"text" if isinstance(each, str) else "prompt_token_ids": each} for each in given]


class RewardBody(RequestBody):
    reward: float
    trace: str | None = None  # its id; by default the reward is of all


def read_body(form: type[BodyT], body: bytes) -> BodyT:
    """Parse a request's body; a `ConfigError` names the first field that is wrong."""
    try:
        value = json_object(body)
    except ConfigError as failure:
        raise ConfigError.of("body", str(failure)) from None
    return read(form, value)
