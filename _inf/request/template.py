"""Renders messages with the model's chat template.

The ids are of exactly the template's text: verl adds no special tokens either, so a template that
writes the BOS itself does not get a second one. A template is a program of the model's authors: it
may raise any exception on a turn that it does not expect.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from _inf.errors import PromptError, check_unicode
from _inf.request.message_forms import (
    DEVELOPER,
    Message,
    by_system,
    form_of_calls,
    shows_developer,
)
from _inf.request.special_tokens import broken, special_tokens
from _inf.runtime import quiet
from _inf.types import ModelInfo, Tokenizer, texts_of

Render = Callable[[Sequence[Message]], str]

CONTINUED = "continue_final_message"


class Template:
    """A tokenizer's chat template with the keywords of one call."""

    def __init__(self, tokenizer: Tokenizer, kwargs: Mapping[str, object] | None = None) -> None:
        self.tokenizer = tokenizer
        self._kwargs = dict(kwargs or {})
        own = self._kwargs.get("chat_template", tokenizer.chat_template)
        self._has_template = own is not None
        self._warned = False

    def prompt(self, messages: Sequence[Message], index: int) -> list[int]:
        """Render a conversation with a generation prompt; `index`: of the prompt, for errors."""
        text = self.text(messages, index)
        with self._refusal(index):
            ids = self._ids(text)
        if not ids:
            raise PromptError(f"prompt {index}: the chat template renders it to nothing.")
        self.check_shown(messages, text, index)
        return ids

    def text(self, messages: Sequence[Message], index: int) -> str:
        """A conversation with a generation prompt, as text."""
        if not self._has_template:
            raise PromptError(
                f"prompt {index}: the model's tokenizer has no chat template to render messages "
                'with; give one (chat_template), or send {"prompt_token_ids": [...]} or '
                '{"text": "..."}.'
            )
        if self._kwargs.get(CONTINUED):
            _check_continued(messages[-1], index)
        with self._refusal(index):
            return self._text(messages)

    @staticmethod
    def _refusal(index: int) -> contextlib.AbstractContextManager[None]:
        return _refusal(f"prompt {index}: the model's chat template or tokenizer refused it")

    def check_shown(self, messages: Sequence[Message], text: str, index: int) -> None:
        """Refuse messages that the text, which was made of them, lacks."""
        self._check_shown(messages, text, self._text, f"prompt {index}, ")

    def _check_shown(
        self, messages: Sequence[Message], text: str, render: Render, where: str, first: int = 0
    ) -> None:
        if all(said.strip() in text for message in messages for said in texts_of(message)):
            return
        from _inf.request.hidden_messages import check_shown

        warning = check_shown(messages, text, render, where, first)
        if warning and not self._warned:
            quiet.warn(warning)
            self._warned = True

    def plain(self, text: str, index: int) -> list[int]:
        """Tokenize text without the template, with the special tokens that the tokenizer adds to
        any text, such as a BOS; `index` as in `prompt`."""
        with _refusal(f"prompt {index}: the model's tokenizer refused the text"):
            ids = self._ids(text, add_special_tokens=True)
        if not ids:
            raise PromptError(f"prompt {index}: the text is empty; write something in it.")
        return ids

    def escape_special_tokens(self, text: str) -> str:
        """Put a space into every special token in a tool's text: `<|im_end|>` would otherwise end
        the tool's turn, and the text after it could start another turn."""
        return broken(text, self._markup)

    @functools.cached_property
    def _markup(self) -> re.Pattern[str]:
        return special_tokens(self.tokenizer)

    def given(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, object]]:
        """Return the messages and the further keywords that the template gets."""
        if any(message["role"] == DEVELOPER or "tool_calls" in message for message in messages):
            messages = self._by_developers(messages)
            if any(message.get("tool_calls") for message in messages):
                messages = [self._form_of_calls(message) for message in messages]
        return list(messages), {}

    def _by_developers(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages, with the role `system` for `developer` if the template does not show
        that."""
        if any(message["role"] == DEVELOPER for message in messages) and not self._shows_developer:
            return by_system(messages)
        return messages

    @functools.cached_property
    def _shows_developer(self) -> bool:
        return shows_developer(self._render)

    @functools.cached_property
    def _form_of_calls(self) -> Callable[[Message], Message]:
        more = {**self._shown_tools, CONTINUED: False}
        return form_of_calls(lambda messages: self._render(messages, **more))

    @property
    def _shown_tools(self) -> Mapping[str, object]:
        """The keyword `tools` that it gets."""
        return {}

    def _text(self, messages: Sequence[Message]) -> str:
        given, more = self.given(messages)
        return self._render(given, **more)

    def _render(self, messages: Sequence[Message], **more: object) -> str:
        keywords = {"add_generation_prompt": True, **self._kwargs, **more}
        return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, **keywords))

    def _ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        check_unicode(text, "it", ValueError)
        ids: list[int] = self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids


def _check_continued(last: Message, index: int) -> None:
    if last["role"] != "assistant" or not last["content"].strip():
        has = "no text" if last["role"] == "assistant" else f"the role {last['role']}"
        raise PromptError(
            f"prompt {index}: {CONTINUED} continues an assistant's text, and the last message has "
            f"{has}."
        )


@contextlib.contextmanager
def _refusal(message: str) -> Iterator[None]:
    try:
        yield
    except Exception as failure:
        raise PromptError(f"{message}: {type(failure).__name__}: {failure}") from failure


def template_of(model: ModelInfo, kwargs: Mapping[str, object]) -> Template | None:
    """The template of a call. kwargs: of `apply_chat_template`."""
    if model.tokenizer is None:  # the server renders
        return None
    return Template(model.tokenizer, kwargs)
