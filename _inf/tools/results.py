"""What a call of a tool returned, as text for the model, or as parts of a message."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from _inf.errors import PromptError
from _inf.types import JSON

Side: TypeAlias = Literal["left", "middle", "right"]

NOTHING = "(no output)"  # a chat template may drop an empty turn


@dataclass(frozen=True)
class Executed:
    """The result of a call. text: what the model reads; it begins with "Error:" if `error` is set.
    seconds: wall time. reward, metrics: returned by a verl tool in addition to its text. truncated:
    whether the text was cut to the limit; the text then says so. content: of a result with more
    than text, the parts of its message; `text` then has the texts of these."""

    text: str = ""
    seconds: float = 0.0
    error: str | None = None
    reward: float | None = None
    metrics: object = None
    truncated: bool = False
    content: Sequence[JSON] = ()

    def with_texts(self, change: Callable[[str], str]) -> Executed:
        """It with each of its texts changed."""
        content = [
            {**part, "text": change(part["text"])} if part["type"] == "text" else part
            for part in self.content
        ]
        return replace(self, text=change(self.text), content=content)


def text_only(content: Sequence[JSON]) -> list[JSON]:
    """Refuse a result that has more than text."""
    raise PromptError("it returned an image, and only text can be shown to the model")


def executed(value: Any, *, verl: bool) -> Executed:
    """Convert a tool's return value to text for the model. A verl tool may return a plain string,
    or `(ToolResponse, reward, metrics)` without the last items."""
    if isinstance(value, Executed):  # of a tool of an MCP server
        return value
    reward = metrics = None
    if verl and isinstance(value, tuple) and 1 <= len(value) <= 3:
        value, reward, metrics = (*value, None, None)[:3]
    response = all(hasattr(value, field) for field in ("text", "image", "video"))
    if response and value.video:
        return Executed(error="it returned a video, which no model is shown")
    if verl and not (response or value is None or isinstance(value, str)):
        kind = type(value).__name__
        return Executed(error=f"it returned {kind}, not (ToolResponse, reward, metrics)")
    content = _content(value, response=response)
    texts = [part["text"] for part in content if part["type"] == "text"]
    text = "".join(texts) if content else _as_text(value.text if response else value)
    reward = None if reward is None else float(reward)
    try:
        metrics = copied(metrics)  # the tool may keep counting in them
    except RecursionError:
        return Executed(error="its metrics contain themselves, or are nested too deeply")
    return Executed(text, reward=reward, metrics=metrics, content=content)


def _content(value: Any, *, response: bool) -> list[JSON]:
    """A result with images as parts of a message: of verl's `ToolResponse`, as verl orders it, the
    images and then the text; of a function's, an image, or a list with some. Others have none."""
    if response:
        items = [*(value.image or ())]
        return [*map(image_part, items), *_text_parts(value.text)] if items else []
    items = [*value] if isinstance(value, list | tuple) else [value]
    if not any(map(_has_image, items)):
        return []
    return [part for item in items for part in _parts(item)]


def _parts(item: object) -> list[JSON]:
    if _has_image(item):
        return [image_part(item["image"] if isinstance(item, Mapping) else item)]
    match item:
        case {"type": "text", "text": str(text)}:
            return _text_parts(text)
    return _text_parts(_as_text(item))


def image_part(image: object) -> JSON:
    return {"type": "image", "image": image}


def _text_parts(text: str | None) -> list[JSON]:
    return [{"type": "text", "text": text}] if text else []


def _has_image(item: object) -> bool:
    """Whether it is an image of PIL, or a message's part with one."""
    if isinstance(item, Mapping):
        return item.get("type") == "image" and _has_image(item.get("image"))
    return any(kind.__module__ == "PIL.Image" for kind in type(item).__mro__)


def _as_text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def shown_part(done: Executed, limit: int, side: Side) -> Executed:
    """The result with at most `limit` characters of its text, and a mark where it is cut. Text that
    is cut stands after what else the result has."""
    # A lone surrogate cannot be encoded.
    done = done.with_texts(lambda text: text.encode("utf-8", "replace").decode())
    if len(done.text) <= limit:
        return done
    text = _cut(done.text, limit, side)
    others = [part for part in done.content if part["type"] != "text"]
    content = [*others, {"type": "text", "text": text}] if others else []
    return replace(done, text=text, content=content, truncated=True)


def _cut(text: str, limit: int, side: Side) -> str:
    """verl 0.6.1, `experimental/agent_loop/tool_agent_loop.py`: "left" keeps the beginning."""
    if len(text) <= limit:
        return text
    head = {"left": limit, "middle": limit - limit // 2, "right": 0}[side]
    tail = len(text) - (limit - head)
    before, after = ("..." if head else ""), ("..." if tail < len(text) else "")
    return f"{text[:head]}{before}({len(text) - limit} characters cut){after}{text[tail:]}"


def copied(value: Any) -> Any:
    """Copy dicts, lists, tuples and numpy arrays, with what is in them: the code of a row may
    change them, and other rows have the same ones. Any other object stays the one it is."""
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return copy.deepcopy(value) if type(value).__module__ in ("collections", "numpy") else value
