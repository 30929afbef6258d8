"""The model's chat template: messages to token ids, whole or only what follows an answer.

In: messages, a call's template keywords and tool schemas; or text that the template is not to
touch. Out: token ids, with nothing added to what the template writes (verl adds no special tokens
either, so a template that writes the BOS itself does not get a second one). Knows the tokenizer;
nothing of limits, rollouts or what a tool does.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from _inf.errors import PromptError, ToolError

Message = Mapping[str, Any]

# Stand for an answer and for a result, so that what follows and whether it is shown can be seen.
ANSWER, RESULT = "ANSWERb81f3c", "RESULTb81f3c"
_ASKED: Message = {"role": "user", "content": "Hi"}


def _called(turn: int) -> list[Message]:
    """A call and its result. Mistral's template counts the nine characters of an id."""
    name, call_id = "f", f"call{turn:05}"
    function = {"name": name, "arguments": {}}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "content": RESULT, "tool_call_id": call_id},
    ]


class Template:
    """A tokenizer's chat template with the keywords and the tools of one call.

    schemas: OpenAI's form, given to the template as `tools`. instructions: told in the system
    message instead where the template pays no heed to `tools`, so that no schema is lost.
    """

    def __init__(
        self,
        tokenizer: Any,
        kwargs: Mapping[str, Any] | None = None,
        *,
        schemas: Sequence[Mapping[str, Any]] = (),
        instructions: str = "",
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._kwargs = dict(kwargs or {})
        self._schemas = list(schemas)
        self._instructions = instructions
        self._eos = {each: str(tokenizer.decode([each])) for each in eos_token_ids}
        if schemas and tokenizer.chat_template is not None:
            _ = self._told  # refuses what can show no schema

    def check_turns(self) -> None:
        """Refuse a template that does not show tools' results, before anything is sent."""
        said = [_ASKED, *_called(1), *_called(2), *_called(3)]
        plain = [{**m, "tool_calls": None} if m["role"] == "assistant" else m for m in said]
        try:
            if RESULT in (text := self._text_after(plain, 5, said)[0]):
                return
            failure = f"it goes on with {text[:40]!r}"
        except Exception as refusal:
            failure = f"{type(refusal).__name__}: {refusal}"
        raise ToolError(
            f"tools: the model's chat template cannot show a tool's result ({failure}); choose a "
            "model that was made for tools."
        )

    def prompt(self, messages: Sequence[Message], index: int) -> list[int]:
        """A conversation with a generation prompt; `index` is the prompt's, for a refusal."""
        if self._tokenizer.chat_template is None:
            raise PromptError(
                f"prompt {index}: the model's tokenizer has no chat template to render messages "
                'with; send {"prompt_token_ids": [...]} or {"text": "..."}.'
            )
        try:
            ids = self._ids(self._text(messages))
        except Exception as failure:  # a template is the model's program: it raises what it likes
            raise PromptError(
                f"prompt {index}: the model's chat template or tokenizer refused it: "
                f"{type(failure).__name__}: {failure}"
            ) from failure
        if not ids:
            raise PromptError(f"prompt {index}: the chat template renders it to nothing.")
        return ids

    def plain(self, text: str, index: int) -> list[int]:
        """Text as it is, without the template, with the special tokens that the tokenizer puts
        around any text, such as a BOS; `index` as in `prompt`."""
        try:
            ids = self._ids(text, add_special_tokens=True)
        except Exception as failure:
            raise PromptError(
                f"prompt {index}: the model's tokenizer refused the text: "
                f"{type(failure).__name__}: {failure}"
            ) from failure
        if not ids:
            raise PromptError(f"prompt {index}: the text is empty; write something in it.")
        return ids

    def after(
        self,
        messages: Sequence[Message],
        place: int,
        *,
        ended: bool,
        called: Sequence[Message] | None = None,
    ) -> list[int]:
        """What the template writes from the end of the answer at `messages[place]` on, up to the
        next generation prompt.

        ended: the answer has its EOS, which is then not repeated. called: the messages with the
        answers' `tool_calls`, for a template that asks for a call before a result.
        """
        text, is_call = self._text_after(messages, place, called or messages)
        found = min((at for eos in self._eos.values() if (at := text.find(eos)) >= 0), default=-1)
        if found >= 0 and (is_call or not text[:found].strip()):
            text = text[found:]
        elif is_call:
            raise ValueError("it does not end a call with an EOS token")
        ids = self._ids(text)
        return ids[1:] if ended and ids and ids[0] in self._eos else ids

    def harmless(self, text: str) -> str:
        """A tool's text with the tokenizer's own tokens broken by a space: `<|im_end|>` in it would
        otherwise end the tool's turn, and what follows could open one of its own."""
        while (broken := self._markup.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)) != text:
            text = broken
        return text

    @functools.cached_property
    def _markup(self) -> re.Pattern[str]:
        names = {*self._tokenizer.get_added_vocab(), *self._tokenizer.all_special_tokens}
        marks = sorted((n for n in names if len(n) > 1 and n.strip()), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, marks)) or r"(?!)")

    @functools.cached_property
    def _told(self) -> str:
        """The role whose message tells the schemas, where the template does not."""
        try:
            if self._render([_ASKED], tools=self._schemas) != self._render([_ASKED]):
                return ""
        except Exception as refusal:  # a template is the model's program: it raises what it likes
            raise ToolError(
                f"tools: the model's chat template refused them: {type(refusal).__name__}: "
                f"{refusal}."
            ) from refusal
        for role in ("system", "user"):
            with contextlib.suppress(Exception):  # some refuse a system message, some drop it
                if self._instructions.strip() in self._render(self._tell([_ASKED], role)):
                    return role
        raise ToolError(
            "tools: the model's chat template shows neither tools nor a system message; choose a "
            "model that was made for tools."
        )

    def _tell(self, messages: Sequence[Message], role: str) -> list[Message]:
        told, rest = self._instructions, [_calls_as_text(message) for message in messages]
        first = next((n for n, m in enumerate(rest) if m["role"] == "user"), None)
        if role == "system" and rest[0]["role"] in ("system", "developer"):
            first = 0
        elif role == "system" or first is None:
            return [{"role": role, "content": told}, *rest]
        words = [rest[first]["content"], told][:: 1 if role == "system" else -1]
        rest[first] = {**rest[first], "content": "\n\n".join(words)}
        return rest

    def _text(self, messages: Sequence[Message]) -> str:
        if not self._schemas:
            return self._render(messages)
        if not self._told:
            return self._render(messages, tools=self._schemas)
        return self._render(self._tell(messages, self._told))

    def _render(self, messages: Sequence[Message], **more: Any) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **self._kwargs, **more
            )
        )

    def _ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        text.encode()  # a tokenizer does not say why it refuses a lone surrogate
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids

    def _text_after(
        self, messages: Sequence[Message], place: int, called: Sequence[Message]
    ) -> tuple[str, bool]:
        """As plain text first, since some refuse two calls in a turn; else as what was called."""
        failure: Exception | None = None
        plain = {"role": "assistant", "content": ANSWER}
        for said, answer in ((messages, plain), (called, _marked(called[place]))):
            try:
                text = self._text([*said[:place], answer, *said[place + 1 :]])
            except Exception as refusal:  # some ask for the call before a tool's result
                failure = refusal
                continue
            if ANSWER in text:
                is_call = answer is not plain and bool(answer.get("tool_calls"))
                return text[text.rindex(ANSWER) + len(ANSWER) :], is_call
        raise failure or ValueError("it does not show what an assistant says")


def _marked(answer: Message) -> Message:
    """The answer with the end of its last call, or its text, marked."""
    *before, last = answer.get("tool_calls") or [None]
    if last is None:
        return {"role": "assistant", "content": ANSWER}
    last = {**last, "function": {**last["function"], "arguments": {"x": ANSWER}}}
    return {**answer, "content": "", "tool_calls": [*before, last]}


def _calls_as_text(message: Message) -> Message:
    """An assistant's calls written out, for a template that would leave them out."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*filter(None, [message["content"]]), *written])}
