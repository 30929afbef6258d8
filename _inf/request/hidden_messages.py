"""Finds the messages whose text a chat template leaves out of the rendered prompt.

Templates strip, escape and shorten texts, so a text that is not found there may still be shown. A
message counts as left out only if another text in its place changes nothing in the prompt.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence

from _inf.errors import PromptError
from _inf.request.message_forms import Message
from _inf.types import texts_of

Render = Callable[[Sequence[Message]], str]


def check_shown(
    messages: Sequence[Message], text: str, render: Render, where: str, first: int
) -> str:
    """Refuse messages, the first of which has the number `first`, if `text`, which `render` made of
    them, lacks one that is not an assistant's. Of an assistant's, templates leave out thoughts and
    what was said next to a call: return a warning, or ""."""
    hidden = _hidden(messages, text, render)
    for place in hidden:
        role, at = messages[place]["role"], f"{where}message {first + place}"
        if role != "assistant":
            raise PromptError(
                f"{at}: the model's chat template does not show its text (role {role}); move the "
                "text, leave the message out, or give another chat_template."
            )
    if not hidden:
        return ""
    return (
        f"{where}message {first + hidden[0]}: the model's chat template does not show what the "
        "assistant said there."
    )


def _hidden(messages: Sequence[Message], text: str, render: Render) -> list[int]:
    places = [
        at
        for at, message in enumerate(messages)
        if any(said.strip() not in text for said in texts_of(message))
    ]
    word = f"PLACEHOLDER{secrets.token_hex(8)}x"
    try:
        other = render(_replaced(messages, places, word))
        hidden = [place for place in places if f"{word}{place}x" not in other]
        if hidden and render(_replaced(messages, hidden, word)) == text:
            return hidden
    except Exception:  # the template refuses other texts there: it looks at them
        pass
    return []


def _replaced(messages: Sequence[Message], places: Collection[int], word: str) -> list[Message]:
    return [
        {**message, "content": f"{word}{at}x"} if at in places else message
        for at, message in enumerate(messages)
    ]
