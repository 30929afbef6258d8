"""The model's chat template: messages to token ids, whole or only what follows an answer.

In: messages, a call's template keywords and tool schemas; or text that the template is not to
touch. Out: token ids, with nothing added to what the template writes (verl adds no special tokens
either, so a template that writes the BOS itself does not get a second one). Knows the tokenizer;
nothing of limits, rollouts or what a tool does.

A template is the model's program: it raises what it likes, on any turn that it was not made for.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from _inf.errors import PromptError, ToolError, told

Message = Mapping[str, Any]

# Stand for an answer and for a tool's result, to be found again in what the template writes.
ANSWER, RESULT = "ANSWERb81f3c", "RESULTb81f3c"
_QUESTION: Message = {"role": "user", "content": "Hi"}


class Template:
    """A tokenizer's chat template with the keywords and the tools of one call.

    schemas: OpenAI's form, given to the template as `tools`. instructions: put into the system
    message where the template does not show `tools`, so that no schema is lost.
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
        self._eos_ids = set(eos_token_ids)
        self._eos = _any_of(str(tokenizer.decode([eos])) for eos in eos_token_ids)
        self._instructed_role = ""  # whose message has the instructions, if one does
        if schemas and tokenizer.chat_template is not None and not self._shows_schemas():
            self._instructed_role = self._role_to_instruct()

    def check_turns(self) -> None:
        """Refuse a template that does not show tools' results, before anything is sent."""
        called = [_QUESTION, *_call_and_result(1), *_call_and_result(2), *_call_and_result(3)]
        answers = [{**m, "tool_calls": None} if m["role"] == "assistant" else m for m in called]
        try:
            text, _ = self._text_after(answers, 5, called)
            failure = "" if RESULT in text else f"it goes on with {text[:40]!r}"
        except Exception as refusal:
            failure = told(refusal)
        if failure:
            raise ToolError(
                f"tools: the model's chat template cannot show a tool's result ({failure}); choose "
                "a model that was made for tools."
            )

    def prompt(self, messages: Sequence[Message], index: int) -> list[int]:
        """A conversation with a generation prompt; `index` is the prompt's, for a refusal."""
        if self._tokenizer.chat_template is None:
            raise PromptError(
                f"prompt {index}: the model's tokenizer has no chat template to render messages "
                'with; send {"prompt_token_ids": [...]} or {"text": "..."}.'
            )
        with _refusal(f"prompt {index}: the model's chat template or tokenizer refused it"):
            ids = self._ids(self._text(messages))
        if not ids:
            raise PromptError(f"prompt {index}: the chat template renders it to nothing.")
        return ids

    def plain(self, text: str, index: int) -> list[int]:
        """Text as it is, without the template, with the special tokens that the tokenizer puts
        around any text, such as a BOS; `index` as in `prompt`."""
        with _refusal(f"prompt {index}: the model's tokenizer refused the text"):
            ids = self._ids(text, add_special_tokens=True)
        if not ids:
            raise PromptError(f"prompt {index}: the text is empty; write something in it.")
        return ids

    def after(
        self,
        messages: Sequence[Message],
        index: int,
        *,
        ended: bool,
        called: Sequence[Message] | None = None,
    ) -> list[int]:
        """What the template writes from the end of the answer at `messages[index]` on, up to the
        next generation prompt.

        ended: the answer has its EOS, which is then not repeated. called: the messages with the
        answers' `tool_calls`, for a template that asks for a call before a result.
        """
        text, in_call = self._text_after(messages, index, called or messages)
        eos = self._eos.search(text)
        if in_call and not eos:
            raise ValueError("it does not end a call with an EOS token")
        if eos and (in_call or not text[: eos.start()].strip()):
            text = text[eos.start() :]  # what stands before it is of the call, or blank
        ids = self._ids(text)
        return ids[1:] if ended and ids and ids[0] in self._eos_ids else ids

    def _text_after(
        self, messages: Sequence[Message], index: int, called: Sequence[Message]
    ) -> tuple[str, bool]:
        """The text behind the answer at `index`, and whether it begins inside the answer's call.

        The answer is put in as plain text first, since some templates refuse two calls in a turn;
        where that is refused or not shown, since some ask for a call before a result, as the call.
        """
        refusal: Exception = ValueError("it does not show what an assistant says")
        plain: Message = {"role": "assistant", "content": ANSWER}
        for conversation, answer in ((messages, plain), (called, _marked(called[index]))):
            try:
                text = self._text([*conversation[:index], answer, *conversation[index + 1 :]])
            except Exception as failure:
                refusal = failure
                continue
            if ANSWER in text:
                return text.rpartition(ANSWER)[2], bool(answer.get("tool_calls"))
        raise refusal

    def harmless(self, text: str) -> str:
        """A tool's text with the tokenizer's own tokens broken by a space: `<|im_end|>` in it would
        otherwise end the tool's turn, and what follows could open one of its own."""
        while (broken := self._markup.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)) != text:
            text = broken
        return text

    @functools.cached_property
    def _markup(self) -> re.Pattern[str]:
        names = {*self._tokenizer.get_added_vocab(), *self._tokenizer.all_special_tokens}
        return _any_of(name for name in names if len(name) > 1 and name.strip())

    def _shows_schemas(self) -> bool:
        try:
            shown = self._render([_QUESTION], tools=self._schemas)
            return shown != self._render([_QUESTION])
        except Exception as refusal:
            raise ToolError(
                f"tools: the model's chat template refused them: {told(refusal)}."
            ) from refusal

    def _role_to_instruct(self) -> str:
        """The role whose message shows the instructions."""
        if not self._instructions:
            raise ToolError(
                "tools: the model's chat template does not show tools, and they can be explained "
                "in its place only for rollout.multi_turn.format: hermes; set that."
            )
        for role in ("system", "user"):
            with contextlib.suppress(Exception):  # some refuse a system message, some drop it
                if self._instructions.strip() in self._render(self._instructed([_QUESTION], role)):
                    return role
        raise ToolError(
            "tools: the model's chat template shows neither tools nor a system message; choose a "
            "model that was made for tools."
        )

    def _instructed(self, messages: Sequence[Message], role: str) -> list[Message]:
        """The messages with the instructions: behind the text of a first system message, before
        that of the first user message, or in a message of their own."""
        rest = [_calls_as_text(message) for message in messages]
        roles = [message["role"] for message in messages]
        if role == "system" and roles[0] in ("system", "developer"):
            content = f"{rest[0]['content']}\n\n{self._instructions}"
            return [{**rest[0], "content": content}, *rest[1:]]
        if role == "user" and "user" in roles:
            first = roles.index("user")
            content = f"{self._instructions}\n\n{rest[first]['content']}"
            return [*rest[:first], {**rest[first], "content": content}, *rest[first + 1 :]]
        return [{"role": role, "content": self._instructions}, *rest]

    def _text(self, messages: Sequence[Message]) -> str:
        if self._instructed_role:
            return self._render(self._instructed(messages, self._instructed_role))
        return self._render(messages, **({"tools": self._schemas} if self._schemas else {}))

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


@contextlib.contextmanager
def _refusal(message: str) -> Iterator[None]:
    """Whatever is raised inside as a `PromptError`."""
    try:
        yield
    except Exception as failure:
        raise PromptError(f"{message}: {type(failure).__name__}: {failure}") from failure


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the words, the longest first; without words, nothing."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _call_and_result(turn: int) -> list[Message]:
    """Mistral's template counts the nine characters of an id."""
    name, call_id = "f", f"call{turn:05}"
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": {}}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "content": RESULT, "tool_call_id": call_id},
    ]


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
