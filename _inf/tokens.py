"""From what a caller writes to token ids.

In: the prompt forms of `InferenceEngine.generate`, one or many, mixed. Out: one `Prompt` each, in
order, with its token ids, within the limits. Knows the tokenizer and nothing of engines; every
refusal is a `PromptError` that begins with the prompt's index.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, Literal

from _inf.errors import PromptError, did_you_mean, shown
from _inf.template import Message, Template

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
TOKEN_IDS = "prompt_token_ids"
FORMS = (
    'a prompt is a string, a list of {"role", "content"} messages, or {"prompt_token_ids": [...]}'
)


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt as it is sent: `token_ids`, how many were cut off by `truncate_prompt`, and the
    messages they were rendered from, if any."""

    token_ids: list[int]
    truncated_tokens: int = 0
    messages: list[Message] | None = None


@dataclasses.dataclass(frozen=True)
class Limits:
    """Token counts: of a prompt, and of a prompt with its answer; and the vocabulary's size."""

    prompt: int
    total: int
    vocabulary: int
    truncate: Literal["left", "right"] | None = None


def normalize(prompts: Any) -> list[list[Message] | list[int]]:
    """One conversation or list of token ids a prompt; `"text"` is one user message.

    A bare list of messages is one conversation, not a batch. An empty list is an empty batch.
    """
    if isinstance(prompts, str | bytes | bytearray | Mapping) or not isinstance(prompts, Sequence):
        return [_one(prompts, 0)]
    if prompts and all(isinstance(p, Mapping) and TOKEN_IDS not in p for p in prompts):
        return [_one(prompts, 0)]
    return [_one(prompt, index) for index, prompt in enumerate(prompts)]


def _one(prompt: Any, index: int) -> list[Message] | list[int]:
    if isinstance(prompt, str):
        if not prompt:
            raise PromptError(f"prompt {index} is an empty string; write something in it.")
        message: Message = {"role": "user", "content": prompt}
        return [message]
    if isinstance(prompt, Mapping):
        return _ids(prompt, index)
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):
        if not prompt:
            raise PromptError(f"prompt {index} is a conversation without messages; add one.")
        return [_message(message, index, place) for place, message in enumerate(prompt)]
    raise PromptError(f"prompt {index} is {_kind(prompt)}; {FORMS}.")


def _ids(prompt: Mapping[str, Any], index: int) -> list[int]:
    if set(prompt) != {TOKEN_IDS}:
        keys = shown(sorted(prompt, key=lambda key: shown(key).strip("'")))
        raise PromptError(f"prompt {index} is a mapping with the keys {keys}; {FORMS}.")
    return _id_list(prompt[TOKEN_IDS], f"prompt {index}: {TOKEN_IDS}")


def _id_list(ids: Any, where: str) -> list[int]:
    ids = _as_list(ids)
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
        raise PromptError(f"{where} is {_kind(ids)}; it takes a list of ints.")
    if not ids:
        raise PromptError(f"{where} is empty; it takes at least one token id.")
    return [_token_id(each, f"{where}[{place}]") for place, each in enumerate(ids)]


def _as_list(array: Any) -> Any:
    """An array's values, or what it was: a tensor on the meta device has none."""
    try:
        return array.tolist()
    except Exception:
        return array


def _token_id(value: Any, where: str) -> int:
    try:
        if "bool" in str(getattr(value, "dtype", type(value))):  # numpy's and torch's too
            raise TypeError
        return operator.index(value)
    except Exception:  # a tensor on the meta device raises another one
        raise PromptError(f"{where} is {_kind(value)}; it must be an int.") from None


def _message(message: Any, index: int, place: int) -> Message:
    where = f"prompt {index}, message {place}"
    if not isinstance(message, Mapping):
        raise PromptError(f"{where} is {_kind(message)}; {FORMS}.")
    for key in message:
        if key not in MESSAGE_KEYS:
            raise PromptError(
                f"{where}: unknown key {shown(key)}{did_you_mean(shown(key), MESSAGE_KEYS) or '.'}"
            )
    calls = [_call(call, f"{where}, tool_calls[{n}]") for n, call in _calls(message, where)]
    if calls and message.get("content") is None:  # as OpenAI's API answers
        message = {**message, "content": ""}
    for key in ("role", "content"):
        if key not in message:
            raise PromptError(f"{where} has no {key!r}; a message needs role and content.")
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or role not in ROLES:
        hint = did_you_mean(shown(role), ROLES) or "."
        raise PromptError(f"{where}: unknown role {shown(role)}{hint} Roles: {', '.join(ROLES)}.")
    if not isinstance(content, str):
        raise PromptError(f"{where}: content is {_kind(content)}; it must be text (a str).")
    return {**message, "tool_calls": calls} if calls else dict(message)


def _calls(message: Mapping[str, Any], where: str) -> Iterator[tuple[int, Any]]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple | type(None)):
        raise PromptError(f"{where}: tool_calls is {_kind(calls)}; it must be a list.")
    return enumerate(calls or ())


def _call(call: Any, where: str) -> dict[str, Any]:
    """OpenAI's form; its arguments may be JSON text, which templates would encode once more."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise PromptError(
            f'{where}: {shown(call)} is not {{"type": "function", "function": '
            '{"name": ..., "arguments": {...}}}.'
        )
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # a model's may be no JSON
            arguments = json.loads(arguments)
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def tokenize(
    prompts: Sequence[list[Message] | list[int]], template: Template, limits: Limits
) -> list[Prompt]:
    """The token ids of each, rendered by the chat template where they are messages."""
    fitting = []
    for index, prompt in enumerate(prompts):
        if isinstance(prompt[0], Mapping):
            messages = prompt
            ids = template.prompt(messages, index)
            where = f"prompt {index}: rendered token"  # a tokenizer may know more than the model
        else:
            messages, ids, where = None, prompt, f"prompt {index}: {TOKEN_IDS}"
        ids, cut = _within(_known(ids, limits, where), limits, index)
        fitting.append(Prompt(ids, cut, messages))
    return fitting


def _known(ids: list[int], limits: Limits, where: str) -> list[int]:
    for place, each in enumerate(ids):
        if not 0 <= each < limits.vocabulary:
            raise PromptError(
                f"{where}[{place}] is {shown(each)}, outside the model's vocabulary of "
                f"{limits.vocabulary} tokens (0 to {limits.vocabulary - 1})."
            )
    return ids


def _within(ids: list[int], limits: Limits, index: int) -> tuple[list[int], int]:
    excess = len(ids) - limits.prompt
    if excess <= 0:
        return ids, 0
    if limits.truncate == "left":
        return ids[excess:], excess
    if limits.truncate == "right":
        return ids[: limits.prompt], excess
    raise PromptError(
        f"prompt {index} has {len(ids)} tokens, above the limit of {limits.prompt} "
        "(rollout.prompt_length). Shorten it, raise the limit, or set truncate_prompt: left|right."
    )


def tokenize_responses(
    responses: Any, prompts: int, tokenizer: Any, limits: Limits
) -> list[list[int]]:
    """The token ids of given answers, one a prompt: text is encoded as it is, ids are checked."""
    given = _as_list(responses)
    if isinstance(given, str) or (given and _is_ids(given)):
        given = [given]
    if not isinstance(given, Sequence):
        raise PromptError(f"responses: {_kind(given)}; it takes a text or token ids a prompt.")
    if len(given) != prompts:
        raise PromptError(f"responses: {len(given)} for {prompts} prompts; give one each.")
    return [_response(each, tokenizer, limits, index) for index, each in enumerate(given)]


def _is_ids(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, Integral) for each in value)


def _response(response: Any, tokenizer: Any, limits: Limits, index: int) -> list[int]:
    if isinstance(response, str):
        try:
            response.encode()  # the tokenizer does not say why it refuses a lone surrogate
        except UnicodeEncodeError:
            raise PromptError(f"response {index} has a lone surrogate: no Unicode.") from None
        return list(tokenizer(response, add_special_tokens=False)["input_ids"]) if response else []
    if isinstance(response, Sequence) and not response:
        return []
    where = f"response {index}"
    return _known(_id_list(response, where), limits, where)


def check_room(prompts: Sequence[Prompt], max_tokens: Sequence[int], limits: Limits) -> None:
    """Refuse a prompt whose answer of its `max_tokens` would not fit behind it."""
    for index, (prompt, answer) in enumerate(zip(prompts, max_tokens, strict=True)):
        length = len(prompt.token_ids)
        if length + answer > limits.total:
            raise PromptError(
                f"prompt {index} has {length} tokens; with max_tokens={answer} that is "
                f"{length + answer}, above the limit of {limits.total} "
                f"(rollout.max_model_len). At most max_tokens={limits.total - length} fits."
            )
