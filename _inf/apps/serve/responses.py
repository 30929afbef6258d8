"""Makes OpenAI's responses and stream events of a request's choices, in the form of the `openai`
package's types, with vLLM's `prompt_token_ids`, `token_ids`, `stop_reason` and `prompt_logprobs`,
and our `weight_version`. Joined, a stream's events are the whole response."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from _inf.apps.openai_format import token_logprobs, token_text, usage
from _inf.apps.serve.bodies import ChatBody, CompletionBody
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.choice import Choice, whole_chunk
from _inf.response.output import GenerationRow
from _inf.response.streaming import StreamChunk

BodyT = TypeVar("BodyT", ChatBody, CompletionBody)
JSON = dict[str, Any]


class Responses(Generic[BodyT]):
    """What the responses to both routes share. model: the name of the served model."""

    prefix: str
    event_name: str  # the `object` of a stream's events

    def __init__(self, call: ServedCall, body: BodyT, model: str) -> None:
        self.call = call
        self.body: BodyT = body
        self.choices = [Choice(call, row) for row in call.rows]
        self._tokenizer = call.rules.model.tokenizer
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        self._about = {"id": name, "created": int(time.time()), "model": model}
        self._usage_asked = body.stream_options is not None and body.stream_options.include_usage

    def _event(self, choices: list[JSON], **more: Any) -> str:
        more = ({"usage": None} if self._usage_asked else {}) | more
        return json.dumps(
            {**self._about, "object": self.event_name, "choices": choices, **more}, allow_nan=False
        )

    def _part(self, choice: Choice, chunk: StreamChunk, **content: Any) -> JSON:
        """A choice, or what a chunk adds to it: with why it ended, and ids if they were asked
        for."""
        about: JSON = {"index": choice.index, "finish_reason": choice.finish_reason, **content}
        if choice.output is not None:
            about["stop_reason"] = choice.stop_reason
            about["weight_version"] = choice.output.weight_version
        if self.body.return_token_ids:
            about["token_ids"] = chunk.token_ids
        return about

    def _usage(self) -> JSON:
        return usage([choice.metadata for choice in self.choices], self.call.n)

    def first_events(self) -> list[str]:
        """The events before the first chunk of any choice."""
        return []

    def last_events(self) -> list[str]:
        """The events after all choices have ended."""
        return [self._event([], usage=self._usage())] if self._usage_asked else []

    def _prompt_logprobs(self, choice: Choice, row: GenerationRow) -> JSON:
        """Each prompt token's own log prob in vLLM's form, without a rank."""
        if self.body.prompt_logprobs is None or row.prompt_logprobs is None:
            return {}
        entries: list[JSON | None] = []
        ids = self.call.prompt_ids(choice.index)
        for token, value in zip(ids, row.prompt_logprobs, strict=True):
            about = {"logprob": value, "decoded_token": token_text(token, self._tokenizer)}
            entries.append(None if value is None else {str(token): about})
        return {"prompt_logprobs": entries}


class ChatResponses(Responses[ChatBody]):
    """Responses to `/v1/chat/completions`."""

    prefix, event_name = "chatcmpl", "chat.completion.chunk"

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        """The response to a request that is not streamed."""
        parts = []
        for choice, row in zip(self.choices, rows, strict=True):
            chunk = whole_chunk(row)
            choice.add(chunk)
            logprobs = token_logprobs(chunk, self._tokenizer, self.body.likeliest)
            parts.append(self._part(choice, chunk, message=choice.message, logprobs=logprobs))
        more = self._prompt_ids() | self._prompt_logprobs(self.choices[0], rows[0])
        return self._event(parts, object="chat.completion", usage=self._usage(), **more)

    def _prompt_ids(self) -> JSON:
        asked = self.body.return_token_ids
        return {"prompt_token_ids": self.call.prompt_ids(0)} if asked else {}

    def first_events(self) -> list[str]:
        delta = {"role": "assistant", "content": ""}
        part = {"delta": delta, "finish_reason": None, "logprobs": None}
        parts = [{"index": choice.index, **part} for choice in self.choices]
        return [
            self._event(parts[:1], **self._prompt_ids()),
            *(self._event([p]) for p in parts[1:]),
        ]

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        """The events of one chunk of a choice."""
        content = choice.add(chunk)
        delta: JSON = {"content": content} if content else {}
        if calls := choice.message.get("tool_calls"):
            delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
        logprobs = token_logprobs(chunk, self._tokenizer, self.body.likeliest)
        part = self._part(choice, chunk, delta=delta, logprobs=logprobs)
        told = delta or "token_ids" in part or logprobs or choice.finish_reason
        return [self._event([part])] if told else []


class CompletionResponses(Responses[CompletionBody]):
    """Responses to `/v1/completions`."""

    prefix, event_name = "cmpl", "text_completion"

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        """The response to a request that is not streamed."""
        parts = [
            self._text_part(choice, whole_chunk(row)) | self._prompt_logprobs(choice, row)
            for choice, row in zip(self.choices, rows, strict=True)
        ]
        return self._event(parts, usage=self._usage())

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        """The events of one chunk of a choice."""
        return [self._event([self._text_part(choice, chunk)])]

    def _text_part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        more: JSON = {}
        if self.body.return_token_ids and not choice.token_ids:  # with the first chunk
            more["prompt_token_ids"] = self.call.prompt_ids(choice.index)
        text = choice.add(chunk)
        logprobs = self._logprobs(choice, chunk)
        return self._part(choice, chunk, text=text, logprobs=logprobs, **more)

    def _logprobs(self, choice: Choice, chunk: StreamChunk) -> JSON | None:
        """The log probs in the form of OpenAI's completions. Of likely tokens with one text the
        likeliest is given."""
        if self.body.likeliest is None or any(map(math.isnan, chunk.logprobs)):
            return None
        texts = [token_text(token, self._tokenizer) for token in chunk.token_ids]
        offsets = []
        for text in texts:
            offsets.append(choice.text_offset)
            choice.text_offset += len(text)
        tops: list[dict[str, float]] = [{} for _ in texts]
        for named, top in zip(tops, chunk.top_logprobs or (), strict=False):
            for token, logprob in top.items():
                named.setdefault(token_text(token, self._tokenizer), logprob)
        return {
            "tokens": texts,
            "token_logprobs": chunk.logprobs,
            "top_logprobs": tops,
            "text_offset": offsets,
        }
