"""One choice of a response: its text, the calls in it, and all of its tokens. A row that is not
streamed is one chunk."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import uuid
from typing import Any

from _inf.apps.openai_format import assistant
from _inf.apps.rendered_call import RenderedCall
from _inf.apps.tool_choice import cut_calls, forced_calls, takes
from _inf.conversation.rules import THOUGHT_ENDS, answered_calls
from _inf.response.row import OF_OUTPUT, GenerationRow
from _inf.response.streaming import StreamChunk
from _inf.types import RequestOutput, ToolCall

THOUGHT_BEGINS = "<think>"
# What a call, or the brackets around one, begins with, in formats that no special token marks.
MARKS = r"[<\[{`]"
# And in formats whose calls begin with words, of which only the first letters may have arrived.
_FIRST_LETTERS = "|".join(rf"{'function call'[:size]}\Z" for size in range(13, 0, -1))
WORDS = {
    "function": r"(?<![\w.-])[A-Za-z_][\w.-]*(?:\(|\Z)",
    "gigachat3": rf"function call|{_FIRST_LETTERS}",
}


def whole_chunk(row: GenerationRow) -> StreamChunk:
    ids = row.token_ids or []
    logprobs = [math.nan] * len(ids) if row.logprobs is None else row.logprobs
    last = {name: getattr(row, name) for name in OF_OUTPUT}
    return StreamChunk(row.completion, ids, row.finish_reason, logprobs, row.top_logprobs, last)


@functools.cache
def may_begin_call(format: str) -> re.Pattern[str]:
    return re.compile("|".join([MARKS, *filter(None, [WORDS.get(format)])]))


class Choice:
    """One choice, while it is answered and when it is finished.

    After the last chunk: `message`, the assistant's; `finish_reason` and `stop_reason` (vLLM's: the
    stop string or stop id that ended it, None for the model's EOS) as the response says them;
    and `ended`, whether its last token is the model's EOS. output: the row so far.
    """

    def __init__(self, call: RenderedCall, row: int) -> None:
        self.call, self.index = call, row
        self.message: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.ended = False
        self.output = RequestOutput()
        self.text_offset = 0  # of the next token's text, for log probs in the old form
        self._text = ""
        self.top_logprobs: list[dict[int, float]] = []  # so far
        self._specials: list[int] = []  # where special tokens stand in the text
        self._sent = 0

    def add(self, chunk: StreamChunk) -> str:
        """Add a chunk; return the content that is now certain and was not before."""
        if self.call.rules.tools and chunk.finish_reason is None:
            special = self.call.rules.model.tokenizer.all_special_ids
            if any(token in special for token in chunk.token_ids):
                self._specials.append(len(self._text))
        self._text += chunk.text
        self.output.token_ids.extend(chunk.token_ids)
        self.output.logprobs.extend(chunk.logprobs)
        self.top_logprobs.extend(chunk.top_logprobs or ())
        certain = self._certain() if chunk.finish_reason is None else self._end(chunk)
        new, self._sent = certain[self._sent :], max(self._sent, len(certain))
        return new

    def _certain(self) -> str:
        """The text so far that is no part of a call, whatever follows."""
        if not self.call.rules.tools:
            return self._text
        if self.call.forced:
            return ""
        # A call begins behind the last thought; one character after the tag's first, because that
        # one would look like a call's beginning.
        start = self._text.rfind(THOUGHT_ENDS) + 1
        if not start and self._text.startswith(THOUGHT_BEGINS):
            start = 1
        format = self.call.rules.config.rollout.multi_turn.format
        found = may_begin_call(format).search(self._text, start)
        ends = [found.start()] if found else []
        ends += [place for place in self._specials if place >= start]
        return self._text[: min(ends, default=None)].rstrip()

    def _end(self, chunk: StreamChunk) -> str:
        """Take the last chunk; return the content of the message."""
        metadata = chunk.metadata or {}
        last = {name: metadata[name] for name in OF_OUTPUT if name in metadata}
        self.output = dataclasses.replace(self.output, finish_reason=chunk.finish_reason, **last)
        stop = self.output.matched_stop
        self.ended = stop in self.call.rules.model.eos_token_ids
        self.stop_reason = None if self.ended else stop
        content, calls = self._parsed()
        cut = self.call.forced and not calls
        if cut:
            content, calls = "", cut_calls(self._text)[: 1 if self.call.one_call else None]
        self.finish_reason = "tool_calls" if calls and not cut else chunk.finish_reason
        ids = [f"call_{uuid.uuid4().hex[:24]}" for _ in calls]
        self.message = {**assistant(content, calls, ids), "refusal": None}
        return content

    @property
    def text(self) -> str:
        """The text so far, with the calls in it."""
        return self._text

    def _parsed(self) -> tuple[str, list[ToolCall]]:
        """The text outside calls, with the white space that it begins with, and the calls. A call
        that the request does not take stays text."""
        if self.call.forced:
            calls = forced_calls(self._text)
            return "" if calls else self._text, calls
        if not self.call.rules.tools:
            return self._text, []
        parsed = answered_calls(self.output, self.call.rules)
        calls = [call for call in parsed.calls if takes(self.call.rules.tools, call)]
        if not calls:
            return self._text, []
        thought, end, outside = parsed.content.rpartition(THOUGHT_ENDS)
        if outside:
            text = self._text.rpartition(THOUGHT_ENDS)[2]
            outside = text[: len(text) - len(text.lstrip())] + outside.lstrip()
        others = [call.raw_text for call in parsed.calls if call not in calls]
        content = "\n".join([*filter(None, [thought + end + outside]), *others])
        return content, calls[: 1 if self.call.one_call else None]
