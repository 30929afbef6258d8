"""Renders messages with the model's chat template: a whole prompt, or only what follows an answer.

The ids are of exactly the template's text: verl adds no special tokens either, so a template that
writes the BOS itself does not get a second one. A template is a program of the model's authors: it
may raise any exception on a turn that it does not expect.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from _inf.errors import PromptError, ToolError, check_unicode, error_text
from _inf.runtime import quiet
from _inf.types import ModelInfo, Tokenizer

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]

CONTINUED = "continue_final_message"
DEVELOPER = "developer"  # the role in whose name newer clients of OpenAI's API instruct
_QUESTION: Message = {"role": "user", "content": "Hi"}


class Template:
    """A tokenizer's chat template with the keywords and the tools of one call.

    schemas: in OpenAI's form, passed to the template as `tools`. instructions: put into the system
    message if the template does not show `tools`, so that no schema is lost.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
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
        own = self._kwargs.get("chat_template", tokenizer.chat_template)
        self._has_template = own is not None
        self._warned = False
        self._instructed_role = ""  # the role whose message gets the instructions
        if schemas and self._has_template and not self._shows_schemas():
            self._instructed_role = self._role_to_instruct()

    @functools.cached_property
    def _eos(self) -> re.Pattern[str]:
        return _any_of(str(self._tokenizer.decode([eos])) for eos in self._eos_ids)

    def check_turns(self) -> None:
        """Refuse a template that does not show tool results, before anything is sent."""
        result = _placeholder()
        turns = [_call_and_result(turn, result) for turn in (1, 2, 3)]
        called = [_QUESTION, *itertools.chain.from_iterable(turns)]
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

    def prompt(self, messages: Sequence[Message], index: int) -> list[int]:
        """Render a conversation with a generation prompt; `index`: of the prompt, for errors."""
        if not self._has_template:
            raise PromptError(
                f"prompt {index}: the model's tokenizer has no chat template to render messages "
                'with; give one (chat_template), or send {"prompt_token_ids": [...]} or '
                '{"text": "..."}.'
            )
        if self._kwargs.get(CONTINUED):
            _check_continued(messages[-1], index)
        with _refusal(f"prompt {index}: the model's chat template or tokenizer refused it"):
            text = self._text(messages)
            ids = self._ids(text)
        if not ids:
            raise PromptError(f"prompt {index}: the chat template renders it to nothing.")
        self._check_shown(messages, text, self._text, f"prompt {index}, ")
        return ids

    def _check_shown(
        self, messages: Sequence[Message], text: str, render: Render, where: str, first: int = 0
    ) -> None:
        if all(message["content"].strip() in text for message in messages):
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
        text, in_call = self._text_after(messages, index, called or messages)
        eos = self._eos.search(text)
        if in_call and not eos:
            raise ValueError("it does not end a call with an EOS token")
        if eos and (in_call or not text[: eos.start()].strip()):
            text = text[eos.start() :]  # the text before it is part of the call, or blank
        ids = self._ids(text)
        return ids[1:] if ended and ids and ids[0] in self._eos_ids else ids

    def _text_after(
        self, messages: Sequence[Message], index: int, called: Sequence[Message]
    ) -> tuple[str, bool]:
        """Return the text after the answer at `index`, and whether it begins inside its tool call.

        The answer is first rendered as plain text, because some templates refuse two calls in a
        turn; if that fails, or hides what follows, it is rendered as a call, because some need a
        call before a result.
        """
        refusal: Exception = ValueError("it does not show an assistant's message")
        mark = _placeholder()
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

    def escape_special_tokens(self, text: str) -> str:
        """Put a space into every special token in a tool's text: `<|im_end|>` would otherwise end
        the tool's turn, and the text after it could start another turn."""
        return _broken(text, self._markup)

    @functools.cached_property
    def _markup(self) -> re.Pattern[str]:
        return _special_tokens(self._tokenizer)

    def _shows_schemas(self) -> bool:
        try:
            shown = self._render([_QUESTION], tools=self._schemas)
            return shown != self._render([_QUESTION])
        except Exception as refusal:
            raise ToolError.of(
                "tools", f"the model's chat template refused them: {error_text(refusal)}."
            ) from refusal

    def _role_to_instruct(self) -> str:
        if not self._instructions:
            raise ToolError.of(
                "tools",
                "the model's chat template does not show tools, and they can be explained "
                "in its place only for rollout.multi_turn.format: hermes; set that.",
            )
        for role in ("system", "user"):
            with contextlib.suppress(Exception):  # some refuse a system message, some drop it
                if self._instructions.strip() in self._render(self._instructed([_QUESTION], role)):
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
            content = f"{self._instructions}\n\n{rest[first]['content']}"
            return [*rest[:first], {**rest[first], "content": content}, *rest[first + 1 :]]
        return [{"role": role, "content": self._instructions}, *rest]

    def given(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, Any]]:
        """Return the messages and the further keywords that the template gets: the tools, or
        messages that explain them if it does not show tools."""
        if any(message["role"] == DEVELOPER for message in messages) and not self._shows_developer:
            messages = _by_system(messages)
        if self._instructed_role:
            return self._instructed(messages, self._instructed_role), {}
        if any(message.get("tool_calls") for message in messages):
            messages = [self._form_of_calls(message) for message in messages]
        return list(messages), {"tools": self._schemas} if self._schemas else {}

    @functools.cached_property
    def _shows_developer(self) -> bool:
        """Whether it shows a developer's text after a system message: many templates skip or refuse
        the role, and OpenAI's shows it only in place of a system message."""
        word = _placeholder()
        before: Message = {"role": "system", "content": "Be brief."}
        try:
            return word in self._render([before, {"role": DEVELOPER, "content": word}, _QUESTION])
        except Exception:
            return False

    @functools.cached_property
    def _form_of_calls(self) -> Callable[[Message], Message]:
        """The form of a message with calls that the template shows. Most encode the arguments, an
        object; those of DeepSeek R1 and V3 concatenate their JSON text, and some of them show a
        call only where the content is null, which Transformers 5 leaves out."""
        mark = _placeholder()
        turn = [_QUESTION, *_call_and_result(1, "", name=mark, arguments={"x": "a"})]
        tools = {"tools": self._schemas} if self._schemas else {}
        for form in (_as_it_is, _with_text, _without_content, _with_text_alone):
            with contextlib.suppress(Exception):
                shown = self._render(
                    [form(message) for message in turn], **{**tools, CONTINUED: False}
                )
                if mark in shown and "{'x'" not in shown:  # as Python shows a dict
                    return form
        return _as_it_is

    def _text(self, messages: Sequence[Message]) -> str:
        given, more = self.given(messages)
        return self._render(given, **more)

    def _render(self, messages: Sequence[Message], **more: Any) -> str:
        more = {"add_generation_prompt": True, **self._kwargs, **more}
        return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, **more))

    def _ids(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        check_unicode(text, "it", ValueError)
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return ids


def _check_continued(last: Message, index: int) -> None:
    if last["role"] != "assistant" or not last["content"].strip():
        has = "no text" if last["role"] == "assistant" else f"the role {last['role']}"
        raise PromptError(
            f"prompt {index}: {CONTINUED} goes on with an assistant's text, and the last message "
            f"has {has}."
        )


@contextlib.contextmanager
def _refusal(message: str) -> Iterator[None]:
    try:
        yield
    except Exception as failure:
        raise PromptError(f"{message}: {type(failure).__name__}: {failure}") from failure


def escaped_json(value: Any, tokenizer: Tokenizer) -> Any:
    """A JSON value with the special tokens in its texts broken, keys too."""
    markup = _special_tokens(tokenizer)

    def escaped(value: Any) -> Any:
        if isinstance(value, str):
            return _broken(value, markup)
        if isinstance(value, list):
            return [escaped(each) for each in value]
        if isinstance(value, dict):
            return {escaped(key): escaped(each) for key, each in value.items()}
        return value

    return escaped(value)


def _broken(text: str, markup: re.Pattern[str]) -> str:
    while (broken := markup.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)) != text:
        text = broken
    return text


def _special_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    names = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    return _any_of(name for name in names if len(name) > 1 and name.strip())


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of the words, the longest first; without words, of nothing."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _placeholder() -> str:
    """A word to search in rendered text. It is drawn anew, so that nobody can write it into a
    message: what follows it would count as what follows the answer."""
    return f"PLACEHOLDER{secrets.token_hex(16)}"


def _as_it_is(message: Message) -> Message:
    return message


def _with_text(message: Message) -> Message:
    """Return the message with its calls' arguments as JSON texts."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_text_arguments(call) for call in message["tool_calls"]]}


def _text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function, arguments = call["function"], call["function"]["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _without_content(message: Message) -> Message:
    """Return the message with null for its content if it has calls and no text."""
    empty = message.get("tool_calls") and not message["content"]
    return {**message, "content": None} if empty else message


def _with_text_alone(message: Message) -> Message:
    return _without_content(_with_text(message))


def _call_and_result(
    turn: int, result: str, *, name: str = "f", arguments: Mapping[str, Any] | None = None
) -> list[Message]:
    """A call and its result; Mistral's template requires ids of nine characters."""
    call_id = f"call{turn:05}"
    function = {"name": name, "arguments": dict(arguments or {})}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "content": result, "tool_call_id": call_id},
    ]


def _by_system(messages: Sequence[Message]) -> list[Message]:
    """Let the system say what developers say: the first instructions in one message, because many
    templates know only one system message."""
    renamed: list[Message] = []
    for message in messages:
        if message["role"] == DEVELOPER:
            message = {**message, "role": "system"}
            if [before["role"] for before in renamed] == ["system"]:
                content = f"{renamed[0]['content']}\n\n{message['content']}"
                renamed = [{**renamed[0], "content": content}]
                continue
        renamed.append(message)
    return renamed


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
    written = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join([*filter(None, [message["content"]]), *written])}


def template_of(model: ModelInfo, kwargs: Mapping[str, Any], **tools: Any) -> Template | None:
    """The template of a call. kwargs: of `apply_chat_template`; tools: as `Template` has them."""
    if model.tokenizer is None:  # the server renders
        return None
    return Template(model.tokenizer, kwargs, eos_token_ids=model.eos_token_ids, **tools)
