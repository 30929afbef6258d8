"""The requests of Anthropic's Messages (anthropic 2.11.0, `types/`), and the chats that they say:
sessions, sampling and calls are those of chats.

Fields are refused that would change the answer and cannot be honoured. Those of Anthropic's own
business (caching, tiers, metadata) have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from _inf.apps.openai_format import RequestBody
from _inf.apps.serve.bodies import TranslatedBody, template_kwargs
from _inf.apps.serve.error_responses import NO_THREADS, RequestError
from _inf.errors import ConfigError, shown

# The one key of a call's `input` if its arguments are no JSON object: their text.
INVALID_JSON = "invalid_json"
BETWEEN_BLOCKS = "\n\n"  # texts of an instruction, a question or a tool's result
FAILED = "Error"


class _Block(RequestBody):
    cache_control: Any = None


class TextBlock(_Block):
    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(_Block):
    type: Literal["thinking"]
    thinking: str
    signature: Any = None  # it is not checked


class ToolUseBlock(_Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: Any = None


def _of_kinds(*kinds: str) -> BeforeValidator:
    """Take a text as a block, and refuse other blocks by name."""

    def blocks(content: object) -> object:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        for block in content if isinstance(content, list) else ():
            kind = block.get("type") if isinstance(block, dict) else block
            if kind not in kinds:
                reason = f"{shown(kind)} is not supported; only {', '.join(kinds)}"
                raise ConfigError.of("type", reason)
        return content

    return BeforeValidator(blocks)


Texts = Annotated[list[TextBlock], _of_kinds("text")]


class ToolResultBlock(_Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)
    is_error: bool = False


class _User(RequestBody):
    role: Literal["user"]
    content: Annotated[
        list[Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]],
        Field(min_length=1),
        _of_kinds("text", "tool_result"),
    ]


class _Assistant(RequestBody):
    role: Literal["assistant"]
    content: Annotated[
        list[Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]],
        _of_kinds("text", "thinking", "tool_use"),
    ]


class _System(RequestBody):
    role: Literal["system"]
    content: Texts


class _Tool(_Block):
    type: Literal["custom"] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: Any = None  # calls are streamed whole
    defer_loading: Literal[False] | None = None


def _own_tools(tools: object) -> object:
    """Refuse Anthropic's own tools by name."""
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in (None, "custom"):
            reason = f"the server's tool {shown(kind)} is not supported; give tools of your own"
            raise ConfigError.of("type", reason)
    return tools


class _ToolChoice(RequestBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _Thinking(RequestBody):
    """budget_tokens, display: without effect: thoughts are as long as the model makes them, and
    shown."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Any = None


class _Format(RequestBody):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


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
    model: str | None = None
    messages: list[Annotated[_User | _Assistant | _System, Field(discriminator="role")]]
    system: Texts | None = None
    tools: Annotated[list[_Tool], BeforeValidator(_own_tools)] = Field(default_factory=list)
    tool_choice: _ToolChoice | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    context_management: _ContextManagement | None = None
    cache_control: Any = None  # this and those below have no effect
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None
    thread: Any = None  # refused

    @field_validator("thread")
    @classmethod
    def _refuse_threads(cls, thread: Any) -> Any:
        """With this code, Anthropic's client sends the conversation again, whole."""
        reason = "thread: nothing is stored here; send the whole conversation."
        raise RequestError(400, reason, key="thread", code=NO_THREADS)

    def asked(self, template: str) -> dict[str, Any]:
        """The messages, tools and template's keywords in the form of chats."""
        messages = [part for message in self.messages for part in _messages(message)]
        if self.system:
            messages.insert(0, {"role": "system", "content": _text(self.system)})
        if messages and messages[-1]["role"] == "assistant":
            reason = "the last one is the assistant's; a request cannot begin the answer"
            raise ConfigError.of("messages", reason)
        wanted: dict[str, Any] = {}
        if self.thinking is not None:
            wanted["enable_thinking"] = self.thinking.type != "disabled"
        if self.output_config is not None and self.output_config.effort is not None:
            wanted["reasoning_effort"] = self.output_config.effort
        kwargs = template_kwargs(wanted, template)
        tools = [*map(_function, self.tools)]
        return {"messages": messages, "tools": tools or None, "chat_template_kwargs": kwargs}


class MessagesBody(CountBody):
    max_tokens: Annotated[int, Field(ge=1)]
    stream: bool = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Any = None  # this and those below have no effect
    service_tier: Any = None
    inference_geo: Any = None
    diagnostics: Any = None

    def chat(self, template: str) -> dict[str, Any]:
        """The body of the chat that it says."""
        choice, output = self.tool_choice, self.output_config
        same = ("model", "max_tokens", "stream", "temperature", "top_p", "top_k")
        return {
            **self.asked(template),
            **{name: getattr(self, name) for name in same},
            "stop": self.stop_sequences or None,
            "tool_choice": _choice(choice),
            "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
            "json_schema": output.format.schema_ if output and output.format else None,
        }


class MessagesChat(TranslatedBody):
    """The chat of a `MessagesBody`."""

    names: ClassVar[Mapping[str, str]] = {
        "prompt": "messages",
        "stop": "stop_sequences",
        "json_schema": "output_config.format.schema",
    }


def _text(blocks: Sequence[TextBlock], between: str = BETWEEN_BLOCKS) -> str:
    return between.join(block.text for block in blocks)


def _messages(message: _User | _Assistant | _System) -> Iterator[dict[str, Any]]:
    """The messages of a chat that one of these is: each tool's result is one of its own."""
    if isinstance(message, _System):
        yield {"role": message.role, "content": _text(message.content)}
    elif isinstance(message, _Assistant):
        yield _answer(message.content)
    else:
        texts: list[TextBlock] = []
        for block in message.content:
            if isinstance(block, TextBlock):
                texts.append(block)
                continue
            if texts:
                yield {"role": "user", "content": _text(texts)}
            texts = []
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
        if texts:
            yield {"role": "user", "content": _text(texts)}


def _result(block: ToolResultBlock) -> str:
    """Chats have no field for a failure: the text says it."""
    text = _text(block.content)
    says_so = not block.is_error or text.startswith(FAILED)
    return text if says_so else f"{FAILED}: {text}"


def _answer(blocks: Sequence[TextBlock | ThinkingBlock | ToolUseBlock]) -> dict[str, Any]:
    """As the answer of a chat was recorded: a session compares the two."""
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": _arguments(block.input)},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    return {
        "role": "assistant",
        "content": _text(texts, ""),
        **({"reasoning_content": "".join(thoughts)} if any(thoughts) else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def call_input(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _arguments(value: dict[str, Any]) -> Any:
    return value[INVALID_JSON] if value.keys() == {INVALID_JSON} else value


def _function(tool: _Tool) -> dict[str, Any]:
    about = {"description": tool.description, "strict": tool.strict}
    given = {name: value for name, value in about.items() if value is not None}
    return {
        "type": "function",
        "function": {"name": tool.name, **given, "parameters": tool.input_schema},
    }


def _choice(choice: _ToolChoice | None) -> Any:
    match choice and choice.type:
        case "any":
            return "required"
        case "tool":
            assert choice is not None
            if choice.name is None:
                raise ConfigError.of("tool_choice.name", "it is missing")
            return {"type": "function", "function": {"name": choice.name}}
        case kind:
            return kind
