"""The requests of OpenAI's Responses (openai 2.6.1, `types/responses/`), and the chats that they
say. Nothing is stored between them: `input` has the whole conversation, as items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator

from _inf.apps.openai_format import RequestBody
from _inf.apps.serve.bodies import TranslatedBody, template_kwargs
from _inf.errors import ConfigError, shown

BETWEEN_TEXTS = "\n\n"  # of a message, and of instructions before the first question
# A thought that a client keeps for us: it is no secret.
UNENCRYPTED = "unencrypted:"
STORED = ("previous_response_id", "conversation", "prompt")
# Codex always sends web_search: it is left out, and a header says so.
TOOLS = ("function", "custom", "namespace", "web_search")
INPUT = "input"  # the argument of a custom tool
CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
}


class _Part(RequestBody):
    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    annotations: Any = None
    logprobs: Any = None


def _parts(content: object) -> object:
    """Take a text as a part, and refuse by name those that are no text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else part
        if not str(kind).endswith("text"):
            raise ConfigError.of("type", f"{shown(kind)} is not supported; only text")
    return content


Texts = Annotated[list[_Part], BeforeValidator(_parts)]


class _Item(RequestBody):
    id: Any = None
    status: Any = None


class MessageItem(_Item):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
    phase: Any = None  # of the answer, as Codex names it


class ReasoningItem(_Item):
    type: Literal["reasoning"]
    summary: list[_Part] = Field(default_factory=list)
    content: list[_Part] | None = None
    encrypted_content: str | None = None

    @property
    def thought(self) -> str:
        kept = self.encrypted_content
        if self.content or kept is None:
            return _text(self.content or self.summary)
        if not kept.startswith(UNENCRYPTED):
            reason = "it is not from this server; leave the item out"
            raise ConfigError.of("encrypted_content", reason)
        return kept.removeprefix(UNENCRYPTED)


class CallItem(_Item):
    """namespace: of the tool, if it is in one."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomCallItem(_Item):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class ResultItem(_Item):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Texts
    name: Any = None


Item = Annotated[
    MessageItem | ReasoningItem | CallItem | CustomCallItem | ResultItem,
    Field(discriminator="type"),
]
ITEMS = (
    "message reasoning function_call custom_tool_call function_call_output custom_tool_call_output"
).split()


def _known_items(items: object) -> object:
    """Take a text as a message, and items without a type as messages; refuse by name those that
    cannot be sent."""
    if isinstance(items, str):
        return [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list):
        return items
    items = [{"type": "message", **item} if isinstance(item, dict) else item for item in items]
    for item in items:
        kind = item.get("type") if isinstance(item, dict) else item
        if kind not in ITEMS:
            reason = f"{shown(kind)} is not supported; only {', '.join(ITEMS)}"
            raise ConfigError.of("type", reason)
    return items


class _FunctionTool(RequestBody):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _CustomTool(RequestBody):
    """format: of its input; only shown to the model."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class _Namespace(RequestBody):
    """Codex's form of tools that belong together."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[_FunctionTool]


class _LeftOut(RequestBody):
    model_config = ConfigDict(extra="ignore")
    type: Literal["web_search"]


def _known_tools(tools: object) -> object:
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else tool
        if kind not in TOOLS:
            reason = f"the server's tool {shown(kind)} is not supported; give tools of your own"
            raise ConfigError.of("type", reason)
    return tools


Tool = Annotated[_FunctionTool | _CustomTool | _Namespace | _LeftOut, Field(discriminator="type")]


class _NamedTool(RequestBody):
    type: Literal["function", "custom"]
    name: str


class _Format(RequestBody):
    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    name: Any = None
    description: Any = None
    strict: Any = None  # a grammar always is

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        return {"type": "object"} if self.type == "json_object" else self.schema_


class _Text(RequestBody):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(RequestBody):
    """summary: without effect, because thoughts are shown whole."""

    effort: str | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None


class _StreamOptions(RequestBody):
    include_obfuscation: Literal[False] | None = None  # there is none


class ItemsBody(RequestBody):
    whole_paths: ClassVar[bool] = True
    input: Annotated[list[Item], BeforeValidator(_known_items)]
    model: str | None = None
    instructions: str | None = None
    stream: bool = False
    stream_options: _StreamOptions | None = None
    tools: Annotated[list[Tool], BeforeValidator(_known_tools)] = Field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | _NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    include: list[Literal["reasoning.encrypted_content"]] = Field(default_factory=list)
    # Accepted only at the value without effect.
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    top_logprobs: Literal[0] | None = None
    # Refused with a reason.
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    # Without effect.
    max_tool_calls: Any = None  # of the server's tools
    metadata: Any = None
    user: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    service_tier: Any = None
    client_metadata: Any = None

    @field_validator(*STORED)
    @classmethod
    def _refuse_what_is_stored(cls, value: Any, info: Any) -> Any:
        raise ConfigError.of(info.field_name, "nothing is stored here; send the whole input")

    @property
    def left_out(self) -> list[str]:
        """The tools that the model does not see."""
        return [tool.type for tool in self.tools if isinstance(tool, _LeftOut)]

    @property
    def functions(self) -> dict[str, tuple[str | None, _FunctionTool | _CustomTool]]:
        """The tools by the names that the model sees, with their namespaces."""
        found: dict[str, tuple[str | None, _FunctionTool | _CustomTool]] = {}
        for tool in self.tools:
            if isinstance(tool, _Namespace):
                found |= {_in(tool.name, one.name): (tool.name, one) for one in tool.tools}
            elif not isinstance(tool, _LeftOut):
                found[tool.name] = (None, tool)
        return found

    def chat(self, template: str) -> dict[str, Any]:
        """The body of the chat that it says."""
        choice: Any = self.tool_choice
        format = self.text and self.text.format
        if isinstance(choice, _NamedTool):
            choice = {"type": "function", "function": {"name": choice.name}}
        wanted = {
            "reasoning_effort": self.reasoning and self.reasoning.effort,
            "verbosity": self.text and self.text.verbosity,
        }
        given = {name: value for name, value in wanted.items() if value is not None}
        same = ("model", "stream", "temperature", "top_p", "parallel_tool_calls")
        tools = [_function(name, tool) for name, (_, tool) in self.functions.items()]
        return {
            **{name: getattr(self, name) for name in same},
            "messages": self._messages(),
            "max_tokens": self.max_output_tokens,
            "tools": tools or None,
            "tool_choice": choice,
            "json_schema": format and format.schema_of_answer,
            "chat_template_kwargs": template_kwargs(given, template),
        }

    def _messages(self) -> list[dict[str, Any]]:
        """The messages of the chat: the parts of an answer are one, and so are instructions before
        the first question."""
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for message in map(_message, self.input):
            last = messages[-1] if messages else message
            if last is message or last["role"] != message["role"]:
                messages.append(message)
            elif message["role"] == "assistant":
                for name in message.keys() - {"role"}:
                    last[name] = last[name] + message[name] if name in last else message[name]
            elif message["role"] == "system" and len(messages) == 1:
                last["content"] += BETWEEN_TEXTS + message["content"]
            else:
                messages.append(message)
        return messages


class ItemsChat(TranslatedBody):
    """The chat of an `ItemsBody`."""

    names: ClassVar[Mapping[str, str]] = {
        "prompt": "input",
        "max_tokens": "max_output_tokens",
        "json_schema": "text.format.schema",
    }


def _text(parts: Sequence[_Part], between: str = "") -> str:
    return between.join(part.text for part in parts)


def _message(item: Item) -> dict[str, Any]:
    match item:
        case MessageItem(role="assistant"):
            return {"role": "assistant", "content": _text(item.content)}
        case MessageItem():  # few templates know developers
            role = "system" if item.role == "developer" else item.role
            return {"role": role, "content": _text(item.content, BETWEEN_TEXTS)}
        case ResultItem():
            about = {"role": "tool", "tool_call_id": item.call_id}
            return {**about, "content": _text(item.output, BETWEEN_TEXTS)}
        case ReasoningItem():
            thought = {"reasoning_content": item.thought} if item.thought else {}
            return {"role": "assistant", "content": "", **thought}
        case CustomCallItem():
            function: dict[str, Any] = {"name": item.name, "arguments": {INPUT: item.input}}
        case CallItem():
            name = _in(item.namespace, item.name) if item.namespace else item.name
            function = {"name": name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _in(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"


def _function(name: str, tool: _FunctionTool | _CustomTool) -> dict[str, Any]:
    if isinstance(tool, _FunctionTool):
        parameters, strict = tool.parameters or {}, tool.strict or None
        about = tool.description
    else:
        parameters, strict = CUSTOM_PARAMETERS, None
        grammar = (tool.format or {}).get("definition")
        about = "\n\n".join(filter(None, [tool.description, grammar]))
    given = {"description": about or None, "strict": strict}
    function = {"name": name, **{key: value for key, value in given.items() if value is not None}}
    return {"type": "function", "function": {**function, "parameters": parameters}}
