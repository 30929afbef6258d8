"""The model's chat template: messages to token ids, whole or only what follows an answer.

In: messages, a call's template keywords and tool schemas. Out: token ids, with nothing added to
what the template writes (verl adds no special tokens either, so a template that writes the BOS
itself does not get a second one). Knows the tokenizer; nothing of limits, rollouts or what a tool
does.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from _inf.errors import PromptError, ToolError

Message = Mapping[str, Any]

ANSWER = "ANSWERb81f3c"  # stands for an answer, so that what follows it can be found
_ASKED: Message = {"role": "user", "content": "Hi"}
_CALLED: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00000",  # nine characters: Mistral's template counts them
            "type": "function",
            "function": {"name": ANSWER, "arguments": {}},
        }
    ],
}


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

    def check_turns(self) -> None:
        """Refuse a template without a place for a tool's result, before anything is sent."""
        result = {"role": "tool", "name": "x", "content": "1", "tool_call_id": "call00000"}
        try:
            self.after([_ASKED, _CALLED, result], 1, ended=False)
        except Exception as failure:
            raise ToolError(
                "tools: the model's chat template cannot show a tool's result "
                f"({type(failure).__name__}: {failure}); choose a model that was made for tools."
            ) from failure

    def prompt(self, messages: Sequence[Message], index: int) -> list[int]:
        """A conversation with a generation prompt; `index` is the prompt's, for a refusal."""
        if self._tokenizer.chat_template is None:
            raise PromptError(
                f"prompt {index}: the model's tokenizer has no chat template to render messages "
                'with; send {"prompt_token_ids": [...]}.'
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

    def after(self, messages: Sequence[Message], place: int, *, ended: bool) -> list[int]:
        """What the template writes from the end of the answer at `messages[place]` on, up to the
        next generation prompt. ended: the answer has its EOS, which is then not repeated."""
        text, is_call = self._text_after(messages, place)
        found = min((at for eos in self._eos.values() if (at := text.find(eos)) >= 0), default=-1)
        if found >= 0 and (is_call or not text[:found].strip()):
            text = text[found:]
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
    def _told(self) -> bool:
        """Whether the schemas must be told in the system message."""
        return self._render([_ASKED], tools=self._schemas) == self._render([_ASKED])

    def _text(self, messages: Sequence[Message]) -> str:
        if not self._schemas:
            return self._render(messages)
        if not self._told:
            return self._render(messages, tools=self._schemas)
        told, rest = self._instructions, [_calls_as_text(message) for message in messages]
        if rest[0]["role"] == "system":
            told, rest = f"{rest[0]['content']}\n\n{told}", rest[1:]
        return self._render([{"role": "system", "content": told}, *rest])

    def _render(self, messages: Sequence[Message], **more: Any) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **self._kwargs, **more
            )
        )

    def _ids(self, text: str) -> list[int]:
        text.encode()  # a tokenizer does not say why it refuses a lone surrogate
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _text_after(self, messages: Sequence[Message], place: int) -> tuple[str, bool]:
        failure: Exception | None = None
        for answer in ({"role": "assistant", "content": ANSWER}, _CALLED):
            try:
                text = self._text([*messages[:place], answer, *messages[place + 1 :]])
            except Exception as refusal:  # some ask for the call before a tool's result
                failure = refusal
                continue
            if ANSWER in text:
                return text[text.rindex(ANSWER) + len(ANSWER) :], answer is _CALLED
        raise failure or ValueError("it does not show what an assistant says")


def _calls_as_text(message: Message) -> Message:
    """An assistant's calls written out, for a template that would leave them out."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    return {**message, "content": "\n".join([*filter(None, [message["content"]]), *written])}
