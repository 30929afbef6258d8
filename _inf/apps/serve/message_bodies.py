"""Translates requests of Anthropic's Messages (anthropic 2.11.0, `types/`) to chats, whose
sessions, sampling and calls they share.

Fields are refused that would change the answer and cannot be honoured. Those of Anthropic's own
business (caching, tiers, metadata) have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.bodies import TranslatedChat, as_function, template_kwargs
from _inf.apps.serve.error_responses import NO_THREADS, RequestError
from _inf.apps.serve.message_blocks import (
    Assistant,
    Block,
    System,
    Texts,
    User,
    chat_messages,
    joined,
)
from _inf.errors import ConfigError
from _inf.types import JSON


class _Tool(Block):
    # Calls are streamed whole, and chat templates have no place for examples.
    without_effect = {"cache_control", "eager_input_streaming", "input_examples"}
    type: Literal["custom"] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    name: str
    description: str | None = None
    input_schema: JSON
    strict: bool | None = None
    defer_loading: Literal[False] | None = None


class _ToolChoice(RequestBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _Thinking(RequestBody):
    """Thoughts are as long as the model makes them, and shown."""

    without_effect = {"budget_tokens", "display"}
    type: Literal["enabled", "adaptive", "disabled"]


class _Format(RequestBody):
    type: Literal["json_schema"]
    schema_: JSON = Field(alias="schema")


class _OutputConfig(RequestBody):
    effort: str | None = None
    format: _Format | None = None


class _KeptThoughts(RequestBody):
    """The one edit of a context that leaves it as it is."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class _ContextManagement(RequestBody):
    edits: list[_KeptThoughts] = Field(default_factory=list)


class CountBody(RequestBody):
    """What `/v1/messages/count_tokens` takes, and `/v1/messages` too."""

    whole_paths: ClassVar[bool] = True
    without_effect = {"cache_control", "speed", "user_profile_id"}
    without_effect |= {"workspace_id"}
    model: str | None = None
    messages: list[Annotated[User | Assistant | System, Field(discriminator="role")]]
    system: Texts | None = None
    tools: list[_Tool] = Field(default_factory=list)
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None  # the format of `output_config`, in the beta's place
    context_management: _ContextManagement | None = None
    thread: object = None  # refused

    @model_validator(mode="after")
    def _refuse_two_formats(self) -> CountBody:
        if self.output_format and self.output_config and self.output_config.format:
            raise ConfigError.of("output_format", "output_config.format is set too; remove one")
        return self

    @field_validator("thread")
    @classmethod
    def _refuse_threads(cls, thread: object) -> object:
        """With this code, Anthropic's client sends the conversation again, whole."""
        reason = "thread: nothing is stored here; send the whole conversation."
        raise RequestError(400, reason, key="thread", code=NO_THREADS)

    def asked(self, template: str) -> JSON:
        """The messages, tools and template's keywords in the form of chats."""
        messages = [part for message in self.messages for part in chat_messages(message)]
        if self.system:
            messages.insert(0, {"role": "system", "content": joined(self.system)})
        if messages and messages[-1]["role"] == "assistant":
            reason = "the last one is the assistant's; a request cannot begin the answer"
            raise ConfigError.of("messages", reason)
        kwargs = template_kwargs(
            template,
            enable_thinking=self.thinking and self.thinking.type != "disabled",
            reasoning_effort=self.output_config and self.output_config.effort,
        )
        tools = [
            as_function(tool.name, tool.input_schema, tool.description, tool.strict)
            for tool in self.tools
        ]
        about = {"tools": tools, "chat_template_kwargs": kwargs}
        return {"messages": messages, **{name: value or None for name, value in about.items()}}


class MessagesBody(CountBody):
    without_effect = {*CountBody.without_effect, "metadata", "service_tier", "inference_geo"}
    without_effect |= {"diagnostics"}
    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    def said(self, template: str) -> JSON:
        """The body of the chat that it says."""
        choice = self.tool_choice
        format = self.output_format or (self.output_config and self.output_config.format)
        return {
            **self.asked(template),
            "model": self.model,
            "max_tokens": self.max_tokens,
            "stream": self.stream,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences or None,
            "tool_choice": _choice(choice),
            "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
            "json_schema": format.schema_ if format else None,
        }


class MessagesChat(TranslatedChat):
    """The chat of a `MessagesBody`."""

    names: ClassVar[Mapping[str, str]] = {
        "prompt": "messages",
        "stop": "stop_sequences",
        "json_schema": "output_config.format.schema",
    }

    @property
    def fields(self) -> dict[str, str]:
        beta = {"json_schema": "output_format.schema"} if self._sent.output_format else {}
        return super().fields | beta


def _choice(choice: _ToolChoice | None) -> object:
    if choice is None or choice.type != "tool":
        return "required" if choice and choice.type == "any" else choice and choice.type
    if choice.name is None:
        raise ConfigError.of("tool_choice.name", "it is missing")
    return {"type": "function", "function": {"name": choice.name}}
