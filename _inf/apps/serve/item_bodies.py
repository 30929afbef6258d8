"""Translates requests of OpenAI's Responses (openai 2.6.1, `types/responses/`) to chats. Nothing is
stored between them: `input` has the whole conversation, as items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from _inf.apps.openai_requests import ABOUT_THE_CLIENT, RequestBody, with_keywords
from _inf.apps.serve.bodies import TranslatedChat, as_function, template_kwargs
from _inf.apps.serve.items import INPUT, Item, as_items, chat_messages, in_namespace
from _inf.errors import ConfigError
from _inf.request.keywords import KEYWORDS
from _inf.types import JSON

# Codex always sends web_search: it is left out, and a header says so.
LEFT_OUT = "web_search"
# Keywords of `generate` for which there are fields of OpenAI's, and those that are only of chats.
OTHERS = "max_tokens n tools json_schema regex logprob_token_ids continue_final_message".split()
SAME = [name for name, row in KEYWORDS.items() if row.in_body and row.kind and name not in OTHERS]
ENCRYPTED = "reasoning.encrypted_content"
CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
}


class _FunctionTool(RequestBody):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: JSON | None = None
    strict: bool | None = None


class _CustomTool(RequestBody):
    """format: of its input; only shown to the model."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: JSON | None = None


class _Namespace(RequestBody):
    """Codex's form of tools that belong together."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[_FunctionTool]


class _LeftOut(RequestBody):
    model_config = ConfigDict(extra="ignore")
    type: Literal["web_search"]


Tool = Annotated[_FunctionTool | _CustomTool | _Namespace | _LeftOut, Field(discriminator="type")]


class _NamedTool(RequestBody):
    type: Literal["function", "custom"]
    name: str


class _Format(RequestBody):
    without_effect = {"name", "description", "strict"}  # a grammar always is
    type: Literal["text", "json_object", "json_schema"]
    schema_: JSON | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _refuse_without_schema(self) -> _Format:
        if self.type == "json_schema" and self.schema_ is None:
            raise ConfigError.of("schema", "it is missing")
        return self

    @property
    def schema_of_answer(self) -> JSON | None:
        return {"type": "object"} if self.type == "json_object" else self.schema_


class _Text(RequestBody):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(RequestBody):
    without_effect = {"summary", "generate_summary", "context"}  # thoughts are shown whole
    effort: str | None = None


class _StreamOptions(RequestBody):
    include_obfuscation: Literal[False] | None = None  # there is none


@with_keywords({name: name for name in SAME})
class ItemsBody(RequestBody):
    whole_paths: ClassVar[bool] = True
    without_effect = {*ABOUT_THE_CLIENT, "max_tool_calls", "client_metadata"}
    input: Annotated[list[Item], BeforeValidator(as_items)]
    model: str | None = None
    instructions: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    include: list[Literal["reasoning.encrypted_content"]] = Field(default_factory=list)
    # Accepted only at the value without effect.
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    metadata: object = None  # repeated in the response
    user: object = None

    def functions(self) -> Iterator[tuple[str, tuple[str | None, _FunctionTool | _CustomTool]]]:
        """The tools that the model sees, by their names there, with their namespaces."""
        for tool in self.tools:
            if isinstance(tool, _Namespace):
                for one in tool.tools:
                    yield in_namespace(tool.name, one.name), (tool.name, one)
            elif not isinstance(tool, _LeftOut):
                yield tool.name, (None, tool)

    def said(self, template: str) -> JSON:
        """The body of the chat that it says."""
        choice: object = self.tool_choice
        format = self.text and self.text.format
        if isinstance(choice, _NamedTool):
            choice = {"type": "function", "function": {"name": choice.name}}
        kwargs = template_kwargs(
            template,
            reasoning_effort=self.reasoning and self.reasoning.effort,
            verbosity=self.text and self.text.verbosity,
        )
        kwargs |= getattr(self, "chat_template_kwargs", None) or {}
        fields = dict(self)
        tools = [_function(name, tool) for name, (_, tool) in self.functions()]
        return {
            **{name: fields[name] for name in SAME},
            "model": self.model,
            "stream": self.stream,
            "parallel_tool_calls": self.parallel_tool_calls,
            "messages": chat_messages(self.instructions, self.input),
            "max_tokens": self.max_output_tokens,
            "tools": tools or None,
            "tool_choice": choice,
            "json_schema": format and format.schema_of_answer,
            "chat_template_kwargs": kwargs or None,
        }


class ItemsChat(TranslatedChat):
    """The chat of an `ItemsBody`."""

    names: ClassVar[Mapping[str, str]] = {
        "prompt": "input",
        "max_tokens": "max_output_tokens",
        "json_schema": "text.format.schema",
    }


def _function(name: str, tool: _FunctionTool | _CustomTool) -> JSON:
    if isinstance(tool, _FunctionTool):
        return as_function(name, tool.parameters or {}, tool.description, tool.strict or None)
    shown = [tool.description, (tool.format or {}).get("definition")]
    return as_function(name, CUSTOM_PARAMETERS, "\n\n".join(filter(None, shown)), None)
