"""Renders one conversation to ids by two paths: the template whole, and ours turn by turn.

An answer's own ids are what the model would have sampled: the template's text of it right after
its generation prompt, up to its EOS.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from _inf.apps.check.turns_conversation import Conversation
from _inf.config import Config
from _inf.conversation.rules import rules_for
from _inf.types import Message, ModelInfo

THOUGHT_ENDS = "</think>"


class Segment(NamedTuple):
    """A stretch of a path's ids. kind: "prompt", "answer", or "after", between an answer and the
    next one. answer: the index of its message."""

    kind: str
    answer: int
    ids: list[int]


class Paths:
    """A conversation through one chat template; raises what the template raises."""

    def __init__(self, model: ModelInfo, config: Config, conversation: Conversation) -> None:
        rules = rules_for(conversation.tools, {}, config, model)
        assert rules.template is not None
        self.template = rules.template  # ours
        self.tokenizer = model.tokenizer
        self.conversation = conversation
        self.schemas = [tool.schema for tool in conversation.tools]
        self._eos = model.eos_token_ids
        special = {*self.tokenizer.get_added_vocab(), *self.tokenizer.all_special_tokens}
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._tail: list[int] = []  # what the template writes after the EOS of a last message
        self.answers = {index: self._answer(index) for index in conversation.answers}

    def whole(self) -> list[int]:
        """Render all messages in one call: up to the EOS of a last answer, or to the prompt of the
        next one."""
        messages, tools = self.conversation.messages, self.schemas
        open_ended = len(messages) - 1 not in self.answers
        ids = self._ids(self._rendered(messages, open_ended, {"tools": tools} if tools else {}))
        return ids if open_ended else ids[: len(ids) - len(self._tail)]

    def ours(self) -> list[Segment]:
        """The prompt, and each answer with the template's ids after it."""
        messages, first = self.conversation.messages, self.conversation.answers[0]
        made = [Segment("prompt", first, self.template.prompt(messages[:first], 0))]
        for index, ids in self.answers.items():
            made.append(Segment("answer", index, ids))
            if index + 1 < len(messages):
                ended = ids[-1:] != [] and ids[-1] in self._eos
                made.append(Segment("after", index, self._after(index, ended=ended)))
        return made

    def shows_tools(self) -> bool:
        """Whether the template itself shows tools; if not, ours explains them in a message."""
        return not self.schemas or "tools" in self.template.given(self.conversation.messages)[1]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def eos_texts(self) -> list[str]:
        return [self.decode([token]) for token in self._eos]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _rendered(self, messages: Sequence[Mapping[str, Any]], prompts: bool, more: Any) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompts, **more
            )
        )

    def _text(self, messages: Sequence[Message], *, prompts: bool) -> str:
        """Render messages as the template gets them from us."""
        shown, more = self.template.given(messages)
        return self._rendered(shown, prompts, more)

    def _answer(self, index: int) -> list[int]:
        """Cut an answer out of the template's text, and complete it with the EOS that follows."""
        messages = self.conversation.messages
        before = self._text(messages[:index], prompts=True)
        upto = self._text(messages[: index + 1], prompts=False)
        start = len(os.path.commonprefix([before, upto]))
        if start < len(before):  # it continues differently: begin at a token or line
            ends = [match.end() for match in self._special.finditer(before)]
            ends += [match.end() for match in re.finditer("\n", before)]
            start = max((end for end in ends if end <= start), default=start)
        ids = self._ids(_with_thought(upto[start:], messages[index], before))
        # The engine stops at the first EOS.
        end = next((place for place, token in enumerate(ids, 1) if token in self._eos), 0)
        ids, self._tail = (ids[:end], ids[end:]) if end else (ids, [])
        if not end and index + 1 < len(messages):  # some templates write it before the next message
            ids += [token for token in self._after(index, ended=False)[:1] if token in self._eos]
        return ids

    def _after(self, index: int, *, ended: bool) -> list[int]:
        """Return what our conversations append after an answer (conversation/episode.py): in them
        the model's calls stay in its text, and special tokens in other texts are broken."""
        upto = list(self.conversation.messages[: self.conversation.next_answer(index)])
        for at in range(self.conversation.answers[0], len(upto)):
            if upto[at]["role"] != "assistant":
                content = self.template.escape_special_tokens(str(upto[at]["content"]))
                upto[at] = {**upto[at], "content": content}
        plain = [{key: m[key] for key in m if key != "tool_calls"} for m in upto]
        return self.template.after(plain, index, ended=ended, called=upto)


def spoken(message: Message) -> str:
    """An answer's text outside its calls, with its thinking."""
    thinking = message.get("reasoning_content")
    before = f"<think>\n{thinking}\n{THOUGHT_ENDS}\n\n" if thinking else ""
    return before + str(message.get("content") or "")


def thought_of(message: Message) -> str:
    """An answer's thinking without its tags."""
    thought = spoken(message).rpartition(THOUGHT_ENDS)[0]
    return thought.strip().removeprefix("<think>").strip()


def _with_thought(written: str, message: Message, before: str) -> str:
    """Put back the thinking that some templates leave out even of the last answer; without what the
    generation prompt already has of it."""
    text, thought = spoken(message).rstrip(), thought_of(message)
    visible = text.rpartition(THOUGHT_ENDS)[2].strip()
    if not thought or thought in written or visible not in written:
        return written
    shared = next(n for n in range(len(text), -1, -1) if before.endswith(text[:n]))
    return text[shared:] + (written.partition(visible)[2] if visible else written)
