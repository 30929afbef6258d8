"""Converts every accepted form of a prompt into messages, token ids or plain text, by attributes:
it imports no library of arrays, tables or messages."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from _inf.errors import PromptError, at_fault, shown
from _inf.request.messages import (
    FORMS,
    TEXT_ONLY,
    form_of_object,
    is_object,
    kind,
    message_of,
    one_message,
    reader_of,
)
from _inf.types import Message, Prompt, as_list, as_sequence

if TYPE_CHECKING:
    from _inf.parts.part import Readers

Text: TypeAlias = "list[Message] | list[int] | str"
Form: TypeAlias = "Text | Prompt"  # a `Prompt` is a row to continue

TOKEN_IDS, TEXT = "prompt_token_ids", "text"


class LaterTurn(list[Any]):
    """Messages or token ids of a conversation that continues: only `max_model_len` bounds them, and
    not `prompt_length`."""


def normalize(prompts: object, readers: Readers = TEXT_ONLY) -> list[Form]:
    """Return messages, token ids or plain text per prompt; `"text"` is one user message. An empty
    list is an empty batch. readers: of what messages may have besides text."""
    forms = []
    for index, prompt in enumerate(listed_prompts(prompts)):
        with at_fault(index=index):
            forms.append(form_of(prompt, index, readers))
    return forms


def listed_prompts(prompts: object) -> Sequence[object]:
    """The prompts of a call: a bare list of messages is one conversation, not a batch."""
    listed = as_sequence(prompts)
    return [prompts] if listed is None or (listed and all(map(_is_message, listed))) else listed


def object_array(values: Sequence[object]) -> object:
    """Return a one-dimensional numpy array of Python objects of any lengths, as verl's batches
    hold them."""
    import numpy as np

    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):  # `array[:] = values` would look into lists
        array[index] = value
    return array


def _is_message(value: object) -> bool:
    if isinstance(value, str):
        return False
    if isinstance(value, Mapping):
        return "role" in value or not {TOKEN_IDS, TEXT}.intersection(value)
    return is_object(value)


def form_of(prompt: object, index: int, readers: Readers = TEXT_ONLY) -> Form:
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError(f"prompt {index} is an empty string; write something in it.")
        message: Message = {"role": "user", "content": str.__str__(prompt)}
        return [message]
    if isinstance(prompt, Mapping):
        if "role" in prompt:
            raise one_message(index)
        return _ids_or_text(prompt, index)
    if (messages := as_sequence(prompt)) is None:
        return form_of_object(prompt, index)
    if not messages:
        raise PromptError(f"prompt {index} is a conversation without messages; add one.")
    checked = [message_of(message, index, at, readers) for at, message in enumerate(messages)]
    reader = reader_of(checked, readers)
    return checked if reader is None else reader.prompt_of(checked, index)


def _ids_or_text(prompt: Mapping[str, object], index: int) -> list[int] | str:
    keys = set(prompt)
    if keys == {TOKEN_IDS}:
        ids = id_list(prompt[TOKEN_IDS], f"prompt {index}: {TOKEN_IDS}")
        return LaterTurn(ids) if isinstance(prompt[TOKEN_IDS], LaterTurn) else ids
    if keys != {TEXT}:
        named = shown(sorted(prompt, key=lambda key: shown(key).strip("'")))
        raise PromptError(f"prompt {index} is a mapping with the keys {named}; {FORMS}.")
    if not isinstance(prompt[TEXT], str):
        raise PromptError(f"prompt {index}: {TEXT} is {kind(prompt[TEXT])}; it must be a str.")
    return str.__str__(prompt[TEXT])


def id_list(ids: object, where: str) -> list[int]:
    ids = as_list(ids)
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise PromptError(f"{where} is {kind(ids)}; it takes a list of ints.")
    if not ids:
        raise PromptError(f"{where} is empty; it takes at least one token id.")
    if {*map(type, ids)} == {int}:  # as nearly always; a look at each takes a hundred times as long
        return list(ids)
    return [_token_id(value, f"{where}[{index}]") for index, value in enumerate(ids)]


def _token_id(value: Any, where: str) -> int:
    try:
        if "bool" in str(getattr(value, "dtype", type(value))):  # numpy's and torch's bools too
            raise TypeError
        return operator.index(value)
    except Exception:  # a tensor on the meta device raises another one
        raise PromptError(f"{where} is {kind(value)}; it must be an int.") from None
