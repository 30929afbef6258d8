"""What files keep of messages: in place of content that a part reads, what that part says of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from _inf.parts.found import PARTS
from _inf.types import as_sequence

READERS = {kind: part for part in PARTS for kind in part.reads}
# verl's columns (0.6.1) of what a model reads besides its ids.
MULTI_MODAL = ("multi_modal_inputs", "multi_modal_data")


def kept_messages(prompt: object) -> object:
    """A prompt as files keep it. What is no list of messages stays as it is."""
    messages = as_sequence(prompt)
    return prompt if messages is None else [*map(_message, messages)]


def kept_column(name: str, value: object) -> object:
    """A row's value of a column of a `DataProto` as files keep it; of inputs only the names."""
    if name == "messages" and isinstance(value, Mapping):
        return kept_messages(value.get("messages"))
    return sorted(value) if name in MULTI_MODAL and isinstance(value, Mapping) else value


def beyond_text(messages: Iterable[Mapping[str, object]]) -> bool:
    """Whether messages have content that a part reads."""
    listed = (as_sequence(message.get("content")) or () for message in messages)
    return any(_kind(part) in READERS for parts in listed for part in parts)


def _message(message: object) -> object:
    parts = as_sequence(message.get("content")) if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or parts is None:
        return message
    return {**message, "content": [*map(_part, parts)]}


def _part(part: object) -> object:
    reader = READERS.get(_kind(part))
    return part if reader is None or not isinstance(part, Mapping) else reader.kept_of(part)


def _kind(part: object) -> str:
    return str(part.get("type")) if isinstance(part, Mapping) else ""
