"""One choice of a response: its text, the calls in it, and all of its tokens. A row that is not
streamed is one chunk."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import uuid

from _inf.apps.openai_answers import assistant
from _inf.apps.rendered_call import RenderedCall
from _inf.apps.tool_choice import cut_calls, forced_calls, takes
from _inf.conversation.rules import THOUGHT_ENDS, answered_calls
from _inf.parts.budget import Forced
from _inf.parts.grammars import Grammar
from _inf.parts.reasoning import Said
from _inf.response.row import GenerationRow
from _inf.response.streaming import StreamChunk
from _inf.response.token_texts import TokenTexts
from _inf.types import JSON, RequestOutput, ToolCall

THOUGHT_BEGINS = "<think>"
ABOUT = RequestOutput().about.keys()
# What a call, or the brackets around one, begins with, in formats that no special token marks, and
# in those whose calls begin with words, of which only the first letters may have arrived.
_BEGINS = re.compile(r"[<\[{`]")
_BEGINS_OF_WORDS = {
    "function": re.compile(r"[<\[{`]|(?<![\w.-])[A-Za-z_][\w.-]*(?:\(|\Z)"),
    "gigachat3": re.compile(r"[<\[{`]|function call|f[unctio al]*\Z"),
}


def whole_chunk(row: GenerationRow) -> StreamChunk:
    ids = row.token_ids or []
    logprobs = [math.nan] * len(ids) if row.logprobs is None else row.logprobs
    metadata = dataclasses.replace(row, padded_to=0).metadata  # nobody reads the padding
    last = {**metadata, "reasoning_tokens": row.reasoning_tokens}
    about = (row.finish_reason, logprobs, row.top_logprobs, last, row.reasoning or "")
    return StreamChunk(row.completion, ids, *about, row.whole_text)


class Growing:
    """A text of an answer as far as it has arrived. specials: where special tokens stand in it."""

    def __init__(self) -> None:
        self.text, self.specials = "", list[int]()
        self.sent = 0  # characters

    def new(self, certain: str) -> str:
        """Return what is certain of it and was not before."""
        new, self.sent = certain[self.sent :], max(self.sent, len(certain))
        return new


class Choice:
    """One choice, while it is answered and when it is finished.

    After the last chunk: `message`, the assistant's; `finish_reason` and `stop_reason` (vLLM's: the
    stop string or stop id that ended it, None for the model's EOS) as the response says them;
    and `ended`, whether its last token is the model's EOS. output: the row so far. text: its whole
    text so far, with the calls and the thought in it.
    """

    def __init__(self, call: RenderedCall, row: int) -> None:
        self.call, self.index = call, row
        self.message: JSON = {}
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.ended = False
        self.output = RequestOutput()
        self.text = ""
        self.top_logprobs: list[dict[int, float]] = []  # so far
        self._thought, self._content = Growing(), Growing()

    @functools.cached_property
    def texts(self) -> TokenTexts:
        """The texts of the tokens, for those who list them."""
        rules = self.call.rules
        return TokenTexts.of_answer(
            rules.model.tokenizer,
            skip_special_tokens=bool(self.call.params.get("skip_special_tokens", True)),
            shown={} if rules.thoughts is None else rules.thoughts.shown,
        )

    def add(self, chunk: StreamChunk) -> tuple[str, str]:
        """Add a chunk; return what is certain now and was not before of the thought, and of the
        content."""
        if self.call.rules.tools and chunk.finish_reason is None and self._has_special(chunk):
            thinks = not (chunk.text or self._content.text) and self._thought.text + chunk.reasoning
            growing = self._thought if thinks else self._content
            growing.specials.append(len(growing.text))
        self.text += chunk.text if chunk.whole_text is None else chunk.whole_text
        self._thought.text += chunk.reasoning
        self._content.text += chunk.text
        self.output.token_ids.extend(chunk.token_ids)
        self.output.logprobs.extend(chunk.logprobs)
        self.top_logprobs.extend(chunk.top_logprobs or ())
        thought, content = self._certain() if chunk.finish_reason is None else self._end(chunk)
        return self._thought.new(thought), self._content.new(content)

    def _has_special(self, chunk: StreamChunk) -> bool:
        """Whether a chunk has special tokens that are no marks of a thought."""
        rules = self.call.rules
        marks = () if rules.thoughts is None else rules.thoughts.shown
        special = rules.model.tokenizer.all_special_ids
        return any(token in special and token not in marks for token in chunk.token_ids)

    def _certain(self) -> tuple[str, str]:
        """The texts so far that are no part of a call, whatever follows."""
        thought, content = self._thought, self._content
        if not self.call.rules.tools:
            return thought.text, content.text
        if self.call.forced:
            return "", ""
        if content.text:  # calls in a thought do not count, unless the answer ends in it
            return thought.text, self._before_calls(content)
        return self._before_calls(thought), ""

    def _before_calls(self, growing: Growing) -> str:
        start = 0
        if self.call.rules.thoughts is None:
            # A call begins after the last thought; one character after the tag's first, because
            # that one would look like a call's beginning.
            start = growing.text.rfind(THOUGHT_ENDS) + 1
            if not start and growing.text.startswith(THOUGHT_BEGINS):
                start = 1
        format = self.call.rules.config.rollout.multi_turn.format
        begins = _BEGINS_OF_WORDS.get(format, _BEGINS)
        found = begins.search(growing.text, max(start, growing.sent))
        ends = [found.start()] if found else []
        ends += [place for place in growing.specials if place >= start]
        return growing.text[: min(ends, default=None)].rstrip()

    def _end(self, chunk: StreamChunk) -> tuple[str, str]:
        """Take the last chunk; return the thought and the content of the message."""
        metadata = chunk.metadata or {}
        last: JSON = {name: metadata[name] for name in ABOUT if name in metadata}
        tokens, forced = metadata.get("reasoning_tokens", 0), metadata.get("forced_at", ())
        last["parts"] = (Said(reasoning_tokens=tokens), Forced(forced))
        self.output = dataclasses.replace(self.output, finish_reason=chunk.finish_reason, **last)
        stop = self.output.matched_stop
        self.ended = stop in self.call.rules.model.eos_token_ids
        self.stop_reason = None if self.ended else stop
        thought, content, calls = self._parsed()
        cut = self.call.forced and not calls
        if cut:
            content, calls = "", cut_calls(self.text)[: 1 if self.call.one_call else None]
        whole = bool(calls) and not cut and chunk.finish_reason != "abort"
        self.finish_reason = "tool_calls" if whole else chunk.finish_reason
        ids = [f"call_{uuid.uuid4().hex[:24]}" for _ in calls]
        self.message = {**assistant(content, calls, ids, thought), "refusal": None}
        return thought, content

    def _parsed(self) -> tuple[str, str, list[ToolCall]]:
        """The thought, the text outside calls with the white space that it begins with, and the
        calls. A call that the request does not take stays text."""
        rules = self.call.rules
        if self.call.forced:
            calls = forced_calls(self.text)
            return "", "" if calls else self.text, calls
        whole = (self._thought.text, self._content.text, list[ToolCall]())
        if not rules.tools:
            return whole
        before = self.call.prompt_ids(self.index)
        constrained = not self.call.params.keys().isdisjoint(Grammar.keywords)
        parsed = answered_calls(self.output, rules, before, constrained=constrained)
        calls = [call for call in parsed.calls if takes(rules.tools, call)]
        if not calls:
            return whole
        thought, end, outside = parsed.content.rpartition(THOUGHT_ENDS)
        if outside:
            text = self._content.text.rpartition(THOUGHT_ENDS)[2]
            outside = text[: len(text) - len(text.lstrip())] + outside.lstrip()
        others = [call.raw_text for call in parsed.calls if call not in calls]
        content = "\n".join([*filter(None, [thought + end + outside]), *others])
        return parsed.reasoning, content, calls[: 1 if self.call.one_call else None]
