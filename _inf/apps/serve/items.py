"""The items of OpenAI's Responses, which make a conversation, and what they are in a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.bodies import AsParts, chat_content
from _inf.errors import ConfigError, shown
from _inf.parts.images.clients import DATA, ONLY_DATA
from _inf.types import JSON

BETWEEN_TEXTS = "\n\n"  # of a message, and of instructions before the first question
# A thought that a client keeps for us: it is no secret.
UNENCRYPTED = "unencrypted:"
INPUT = "input"  # the argument of a custom tool


class Part(RequestBody):
    without_effect = {"annotations", "logprobs"}
    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str

    @property
    def part(self) -> JSON:
        """It in a chat."""
        return {"type": "text", "text": self.text}


class ImagePart(RequestBody):
    without_effect = {"detail"}  # how much of an image OpenAI's models look at
    type: Literal["input_image"]
    image_url: str

    @model_validator(mode="after")
    def _refuse_addresses(self) -> ImagePart:
        if not self.image_url.startswith(DATA):
            raise ConfigError.of("image_url", f"{shown(self.image_url)} is not read: {ONLY_DATA}")
        return self

    @property
    def part(self) -> JSON:
        return {"type": "image_url", "image_url": {"url": self.image_url}}


Content = Annotated[list[Annotated[Part | ImagePart, Field(discriminator="type")]], AsParts]


class _Item(RequestBody):
    without_effect = {"id", "status", "phase"}  # of Codex's answers


class MessageItem(_Item):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    @model_validator(mode="after")
    def _refuse_images_of_others(self) -> MessageItem:
        if self.role != "user" and any(isinstance(part, ImagePart) for part in self.content):
            reason = (
                f"a message of {self.role} has an image; only a user's and a function's output may"
            )
            raise ConfigError.of("content", reason)
        return self


class ReasoningItem(_Item):
    type: Literal["reasoning"]
    summary: list[Part] = Field(default_factory=list)
    content: list[Part] | None = None
    encrypted_content: str | None = None

    @property
    def thought(self) -> str:
        kept = self.encrypted_content
        if self.content or kept is None:
            return "".join(part.text for part in self.content or self.summary)
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
    without_effect = {"id", "status", "name"}
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


Item = Annotated[
    MessageItem | ReasoningItem | CallItem | CustomCallItem | ResultItem,
    Field(discriminator="type"),
]


def as_items(items: object) -> object:
    """Take a text as a message, and items without a type as messages."""
    if isinstance(items, str):
        return [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list):
        return items
    return [{"type": "message", **item} if isinstance(item, dict) else item for item in items]


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[JSON]:
    """The messages of a chat: the parts of an answer are one, and so are instructions before the
    first question."""
    messages: list[JSON] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for message in map(_message, items):
        last = messages[-1] if messages else {"role": None}
        if last["role"] != message["role"]:
            messages.append(message)
        elif message["role"] == "assistant":
            for name in message.keys() - {"role"}:
                last[name] = last[name] + message[name] if name in last else message[name]
        elif message["role"] == "system" and len(messages) == 1:
            last["content"] += BETWEEN_TEXTS + message["content"]
        else:
            messages.append(message)
    return messages


def _said(parts: Sequence[Part | ImagePart], between: str) -> str | list[JSON]:
    return chat_content([part.part for part in parts], between)


def _message(item: Item) -> JSON:
    match item:
        case MessageItem(role="assistant"):
            return {"role": "assistant", "content": _said(item.content, "")}
        case MessageItem():  # few templates know developers
            role = "system" if item.role == "developer" else item.role
            return {"role": role, "content": _said(item.content, BETWEEN_TEXTS)}
        case ResultItem():
            about = {"role": "tool", "tool_call_id": item.call_id}
            return {**about, "content": _said(item.output, BETWEEN_TEXTS)}
        case ReasoningItem():
            thought = {"reasoning_content": item.thought} if item.thought else {}
            return {"role": "assistant", "content": "", **thought}
        case CustomCallItem():
            function: JSON = {"name": item.name, "arguments": {INPUT: item.input}}
        case CallItem():
            name = in_namespace(item.namespace, item.name) if item.namespace else item.name
            function = {"name": name, "arguments": item.arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def in_namespace(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"
