"""Turns prompts and given responses into token ids, and checks them against the limits."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral

from _inf.errors import (
    PromptError,
    PromptTooLongError,
    at_fault,
    check_unicode,
    shown,
)
from _inf.request.messages import kind
from _inf.request.prompts import TOKEN_IDS, Form, LaterTurn, Text, id_list
from _inf.request.template import Template
from _inf.types import Limits, Prompt, Side, Tokenizer, as_list


def tokenize(
    prompts: Sequence[Form],
    template: Template | None | Sequence[Template | None],
    limits: Limits,
    max_tokens: Sequence[int] | None = None,
    truncate: Side | None = None,
    indexes: Sequence[int] = (),
) -> list[Prompt]:
    """Return each prompt's token ids; messages are rendered by the chat template. Without a
    template the server renders and tokenizes, and messages and text stay as they are.

    template: of all prompts, or a list of one each. max_tokens: of each answer, which must fit
    after its prompt. truncate: the call's own `truncate_prompt`. indexes: the numbers of these
    prompts in the call, if they are not all.
    """
    if truncate is not None:
        limits = replace(limits, truncate=truncate)
    tokenized = []
    for place, prompt in enumerate(prompts):
        index = indexes[place] if indexes else place
        rendered_by = template[place] if isinstance(template, Sequence) else template
        most = None if max_tokens is None else max_tokens[place]
        own_limits = _of_later_turn(limits, most) if isinstance(prompt, LaterTurn) else limits
        with at_fault(index=index):
            if isinstance(prompt, Prompt):
                one = prompt.rendered(rendered_by, own_limits)
            else:
                one = _tokenized(prompt, rendered_by, own_limits, index)
            if most is not None and len(one.token_ids) + most > limits.total:
                raise _no_room_for_answer(index, len(one.token_ids), most, limits)
        tokenized.append(one)
    return tokenized


def _of_later_turn(limits: Limits, most: int | None) -> Limits:
    """The limits of a prompt that continues a conversation: only the total is limited."""
    room = max(1, limits.total - (most or 1))
    return replace(limits, prompt=room if limits.truncate else sys.maxsize)


def _tokenized(prompt: Text, template: Template | None, limits: Limits, index: int) -> Prompt:
    messages = None
    if template is None:
        return _as_given(prompt, index)
    if isinstance(prompt, str):
        ids, where = template.plain(prompt, index), f"prompt {index}: the text's token"
    elif isinstance(prompt[0], Mapping):
        messages = prompt
        ids, where = template.prompt(messages, index), f"prompt {index}: rendered token"
    else:
        ids, where = prompt, f"prompt {index}: {TOKEN_IDS}"
    ids = known_ids(ids, limits, where)
    excess = len(ids) - limits.prompt
    if excess <= 0:
        return Prompt(ids, 0, messages, index=index)
    if limits.truncate is None:
        raise PromptTooLongError(
            f"prompt {index} has {len(ids)} tokens, above the limit of {limits.prompt} "
            "(rollout.prompt_length). Shorten it, raise the limit, or set truncate_prompt: "
            "left|right, for the call or in the config."
        )
    kept = ids[excess:] if limits.truncate == "left" else ids[: limits.prompt]
    return Prompt(kept, excess, messages, index=index)


def _as_given(prompt: Text, index: int) -> Prompt:
    if not prompt:
        raise PromptError(f"prompt {index}: the text is empty; write something in it.")
    if not isinstance(prompt, str) and not isinstance(prompt[0], Mapping):
        raise PromptError(
            f"prompt {index}: {TOKEN_IDS}: the server works with text; send messages or text, or "
            "set tokenizer_path if the server accepts token ids."
        )
    try:
        sent = json.dumps(prompt, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as failure:
        raise PromptError(f"prompt {index} cannot be sent as JSON: {failure}.") from None
    check_unicode(sent, f"prompt {index}", PromptError)
    if isinstance(prompt, str):
        return Prompt([], text=prompt, index=index)
    return Prompt([], messages=prompt, index=index)


def known_ids(ids: list[int], limits: Limits, where: str) -> list[int]:
    """Refuse ids outside the model's vocabulary; a tokenizer may know more tokens."""
    if ids and not (0 <= min(ids) and max(ids) < limits.vocabulary):
        known = range(limits.vocabulary)
        index, token = next(pair for pair in enumerate(ids) if pair[1] not in known)
        raise PromptError(
            f"{where}[{index}] is {shown(token)}, outside the model's vocabulary of "
            f"{limits.vocabulary} tokens (0 to {limits.vocabulary - 1})."
        )
    return ids


def tokenize_responses(
    responses: object, prompts: int, tokenizer: Tokenizer, limits: Limits
) -> list[list[int]]:
    """Return the token ids of given responses, one per prompt; ids are checked, text encoded."""
    given = as_list(responses)
    if not isinstance(given, Sequence):
        raise PromptError(f"responses: {kind(given)}; expected text or token ids for each prompt.")
    if isinstance(given, str) or (given and all(isinstance(item, Integral) for item in given)):
        given = [given]
    if len(given) != prompts:
        raise PromptError(f"responses: {len(given)} for {prompts} prompts; give one per prompt.")
    ids = []
    for index, response in enumerate(given):
        with at_fault(index=index):
            ids.append(_response(response, tokenizer, limits, index))
    return ids


def _response(response: object, tokenizer: Tokenizer, limits: Limits, index: int) -> list[int]:
    where = f"response {index}"
    if isinstance(response, str):
        check_unicode(response, where, PromptError)
        ids = tokenizer(response, add_special_tokens=False)["input_ids"] if response else []
        return known_ids(list(ids), limits, f"{where}: the text's token")
    ids = as_list(response)
    if isinstance(ids, Sequence) and not ids:
        return []
    return known_ids(id_list(ids, where), limits, where)


def no_room(
    index: int, prompt: int, answer: int, limits: Limits, what: str, remedy: str
) -> PromptTooLongError:
    """The error for a prompt that exceeds the limit together with its answer, called `what`."""
    return PromptTooLongError(
        f"prompt {index} has {prompt} tokens; with {what} that is {prompt + answer}, above the "
        f"limit of {limits.total} (rollout.max_model_len). {remedy}",
        index=index,
    )


def _no_room_for_answer(index: int, prompt: int, most: int, limits: Limits) -> PromptTooLongError:
    left = limits.total - prompt
    remedy = f"At most max_tokens={left} fits." if left > 0 else "Shorten the prompt."
    error = no_room(index, prompt, most, limits, f"max_tokens={most}", remedy)
    error.key = "max_tokens" if left > 0 else None
    return error
