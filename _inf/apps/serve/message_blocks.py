"""The messages of Anthropic's Messages, as lists of blocks, and what they are in a chat."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.bodies import AsParts, chat_content
from _inf.types import JSON

# The one key of a call's `input` if its arguments are no JSON object: their text.
INVALID_JSON = "invalid_json"
BETWEEN_BLOCKS = "\n\n"  # texts of an instruction, a question or a tool's result
FAILED = "Error"


class Block(RequestBody):
    without_effect = {"cache_control"}


class TextBlock(Block):
    type: Literal["text"]
    text: str
    citations: Annotated[list[object], Field(max_length=0)] | None = None

    @property
    def part(self) -> JSON:
        return {"type": "text", "text": self.text}


class _Data(RequestBody):
    """Nothing is read but what the request holds, so a source has no URL and no file."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class ImageBlock(Block):
    type: Literal["image"]
    source: _Data

    @property
    def part(self) -> JSON:
        """It in a chat."""
        url = f"data:{self.source.media_type};base64,{self.source.data}"
        return {"type": "image_url", "image_url": {"url": url}}


class ThinkingBlock(Block):
    without_effect = {"cache_control", "signature"}
    type: Literal["thinking"]
    thinking: str


class ToolUseBlock(Block):
    without_effect = {"cache_control", "caller"}
    type: Literal["tool_use"]
    id: str
    name: str
    input: JSON


Texts = Annotated[list[TextBlock], AsParts]
Content = Annotated[list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]], AsParts]


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Content = Field(default_factory=list)
    is_error: bool = False


class User(RequestBody):
    role: Literal["user"]
    content: Annotated[
        list[Annotated[TextBlock | ImageBlock | ToolResultBlock, Field(discriminator="type")]],
        Field(min_length=1),
        AsParts,
    ]


class Assistant(RequestBody):
    role: Literal["assistant"]
    content: Annotated[
        list[Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]],
        AsParts,
    ]


class System(RequestBody):
    role: Literal["system"]
    content: Texts


def joined(blocks: Sequence[TextBlock], between: str = BETWEEN_BLOCKS) -> str:
    return between.join(block.text for block in blocks)


def chat_messages(message: User | Assistant | System) -> Iterator[JSON]:
    """The messages of a chat that one of these is: each tool's result is one of its own."""
    if isinstance(message, System):
        yield {"role": message.role, "content": joined(message.content)}
    elif isinstance(message, Assistant):
        yield _answer(message.content)
    else:
        said: list[TextBlock | ImageBlock] = []
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                said.append(block)
                continue
            if said:
                yield {"role": "user", "content": _said(said)}
            said = []
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
        if said:
            yield {"role": "user", "content": _said(said)}


def _said(blocks: Sequence[TextBlock | ImageBlock]) -> str | list[JSON]:
    return chat_content([block.part for block in blocks], BETWEEN_BLOCKS)


def _result(block: ToolResultBlock) -> str | list[JSON]:
    """Chats have no field for a failure: the text says it."""
    text = _said(block.content)
    if not isinstance(text, str):
        return [*([{"type": "text", "text": f"{FAILED}: "}] if block.is_error else []), *text]
    says_so = not block.is_error or text.startswith(FAILED)
    return text if says_so else f"{FAILED}: {text}"


def _answer(blocks: Sequence[TextBlock | ThinkingBlock | ToolUseBlock]) -> JSON:
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
        "content": joined(texts, ""),
        **({"reasoning_content": "".join(thoughts)} if any(thoughts) else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def call_input(arguments: str) -> JSON:
    """A call's arguments as an object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID_JSON: arguments}


def _arguments(value: JSON) -> object:
    return value[INVALID_JSON] if value.keys() == {INVALID_JSON} else value
