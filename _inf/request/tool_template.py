"""Renders what follows an answer: the results of tools, or a user's reply. And shows tools."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from collections.abc import Collection, Mapping, Sequence

from _inf.errors import ToolError, error_text
from _inf.request.message_forms import DEVELOPER, QUESTION, Message, call_and_result, placeholder
from _inf.request.special_tokens import any_of
from _inf.request.template import Template
from _inf.types import JSON, Tokenizer


class ToolTemplate(Template):
    """The template of calls with tools or turns.

    schemas: in OpenAI's form, passed to the template as `tools`. instructions: put into the system
    message if the template does not show `tools`, so that no schema is lost.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        kwargs: Mapping[str, object] | None = None,
        *,
        eos_token_ids: Collection[int] = (),
        schemas: Sequence[Mapping[str, object]] = (),
        instructions: str = "",
    ) -> None:
        super().__init__(tokenizer, kwargs)
        self._eos_ids = set(eos_token_ids)
        self._schemas = list(schemas)
        self._instructions = instructions
        self._instructed_role = ""  # the role whose message gets the instructions
        if schemas and self._has_template and not self._shows_schemas():
            self._instructed_role = self._role_to_instruct()

    @functools.cached_property
    def _eos(self) -> re.Pattern[str]:
        return any_of(str(self.tokenizer.decode([eos])) for eos in self._eos_ids)

    def check_turns(self) -> None:
        """Refuse a template that does not show tool results, before anything is sent."""
        result = placeholder()
        turns = [call_and_result(turn, result) for turn in (1, 2, 3)]
        called = [QUESTION, *itertools.chain.from_iterable(turns)]
        answers = [{**m, "tool_calls": None} if m["role"] == "assistant" else m for m in called]
        try:
            text, _ = self._text_after(answers, 5, called)
            failure = "" if result in text else f"it continues with {text[:40]!r}"
        except Exception as refusal:
            failure = error_text(refusal)
        if failure:
            raise ToolError.of(
                "tools",
                f"the model's chat template cannot show a tool's result ({failure}); choose "
                "a model that was made for tools.",
            )

    def after(
        self,
        messages: Sequence[Message],
        index: int,
        *,
        ended: bool,
        called: Sequence[Message] | None = None,
    ) -> list[int]:
        """Return the ids between the end of the answer at `messages[index]` and the next answer.

        ended: the answer has its EOS, which is then not repeated. called: the messages with the
        answers' `tool_calls`, for a template that needs a call before a result.
        """
        ids = self._ids(self.text_after(messages, index, called or messages))
        return self.without_eos(ids) if ended else ids

    def without_eos(self, ids: list[int]) -> list[int]:
        """The ids after an answer that has its EOS, which is not repeated."""
        return ids[1:] if ids and ids[0] in self._eos_ids else ids

    def text_after(self, messages: Sequence[Message], index: int, called: Sequence[Message]) -> str:
        """The text of the ids of `after`."""
        text, in_call = self._text_after(messages, index, called)
        eos = self._eos.search(text)
        if in_call and not eos:
            raise ValueError("it does not end a call with an EOS token")
        if eos and (in_call or not text[: eos.start()].strip()):
            return text[eos.start() :]  # the text before it is part of the call, or blank
        return text

    def _text_after(
        self, messages: Sequence[Message], index: int, called: Sequence[Message]
    ) -> tuple[str, bool]:
        """Return the text after the answer at `index`, and whether it begins inside its tool call.

        The answer is first rendered as plain text, because some templates refuse two calls in a
        turn; if that fails, or hides what follows, it is rendered as a call, because some need a
        call before a result.
        """
        refusal: Exception = ValueError("it does not show an assistant's message")
        mark = placeholder()
        plain: Message = {"role": "assistant", "content": mark}
        for conversation, answer in ((messages, plain), (called, _marked(called[index], mark))):
            upto, later = [*conversation[:index], answer], conversation[index + 1 :]

            def rendered(later: Sequence[Message], upto: list[Message] = upto) -> str:
                return self._text([*upto, *later]).rpartition(mark)[2]

            try:
                if mark in (text := self._text([*upto, *later])):
                    text = text.rpartition(mark)[2]
                    self._check_shown(later, text, rendered, "", index + 1)
                    return text, bool(answer.get("tool_calls"))
            except Exception as failure:
                refusal = failure
        raise refusal

    def _shows_schemas(self) -> bool:
        try:
            shown = self._render([QUESTION], tools=self._schemas)
            return shown != self._render([QUESTION])
        except Exception as refusal:
            raise ToolError.of(
                "tools", f"the model's chat template refused them: {error_text(refusal)}."
            ) from refusal

    def _role_to_instruct(self) -> str:
        if not self._instructions:
            raise ToolError.of(
                "tools",
                "the model's chat template does not show tools, and a message can explain them "
                "only in rollout.multi_turn.format: hermes; set that.",
            )
        for role in ("system", "user"):
            with contextlib.suppress(Exception):  # some refuse a system message, some drop it
                if self._instructions.strip() in self._render(self._instructed([QUESTION], role)):
                    return role
        raise ToolError.of(
            "tools",
            "the model's chat template shows neither tools nor a system message; choose a "
            "model that was made for tools.",
        )

    def _instructed(self, messages: Sequence[Message], role: str) -> list[Message]:
        """Add the instructions to the messages: at the end of a first system message, at the start
        of the first user message, or in a new message."""
        rest = [_calls_as_text(message) for message in messages]
        roles = [message["role"] for message in messages]
        if role == "system" and roles[0] in ("system", DEVELOPER):
            content = f"{rest[0]['content']}\n\n{self._instructions}"
            return [{**rest[0], "content": content}, *rest[1:]]
        if role == "user" and "user" in roles:
            first = roles.index("user")
            said = _after(f"{self._instructions}\n\n", rest[first]["content"])
            return [*rest[:first], {**rest[first], "content": said}, *rest[first + 1 :]]
        return [{"role": role, "content": self._instructions}, *rest]

    def given(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, object]]:
        """The tools too, or messages that explain them if the template does not show tools."""
        if self._instructed_role:
            return self._instructed(self._by_developers(messages), self._instructed_role), {}
        given, more = super().given(messages)
        return given, {**more, **self._shown_tools}

    @functools.cached_property
    def _shown_tools(self) -> dict[str, object]:
        return {"tools": self._schemas} if self._schemas else {}


def _after(text: str, content: str | list[JSON]) -> str | list[JSON]:
    """A message's content with a text before it."""
    return (
        text + content if isinstance(content, str) else [{"type": "text", "text": text}, *content]
    )


def _marked(answer: Message, mark: str) -> Message:
    """Return the answer with a placeholder in its last call, or as its text."""
    *before, last = answer.get("tool_calls") or [None]
    if last is None:
        return {"role": "assistant", "content": mark}
    last = {**last, "function": {**last["function"], "arguments": {"x": mark}}}
    return {**answer, "content": "", "tool_calls": [*before, last]}


def _calls_as_text(message: Message) -> Message:
    """Write an assistant's calls into its text, for a template that would omit them."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not calls:
        return message
    written = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*filter(None, [message["content"]]), *written])}
