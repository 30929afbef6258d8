"""Makes OpenAI's responses and stream events of a request's choices.

In: a `ServedCall`, its body, and the rows or chunks of its answer. Out: JSON text in the form of
the `openai` package's types, with vLLM's `prompt_token_ids`, `token_ids`, `stop_reason` and
`prompt_logprobs`, and our `weight_version`. Joined, a stream's events are the whole response.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from _inf.apps.openai_format import token_counts, token_logprobs, token_text
from _inf.apps.serve.bodies import ChatBody, CompletionBody
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.choice import Choice, whole_chunk
from _inf.response.row import GenerationRow
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
        self.choices = [Choice(call, row) for row in range(call.rows)]
        self._tokenizer = call.rules.model.tokenizer
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        self._about = {"id": name, "created": int(time.time()), "model": model}
        self._usage_asked = body.stream_options is not None and body.stream_options.include_usage

    def _text(self, kind: str, choices: list[JSON], **more: Any) -> str:
        usage = {"usage": None} if self._usage_asked else {}
        return json.dumps(
            {**self._about, "object": kind, "choices": choices, **usage, **more}, allow_nan=False
        )

    def _ended(self, choice: Choice, chunk: StreamChunk) -> JSON:
        """The fields of a choice that say why it ended, and its ids if they were asked for."""
        about: JSON = {"index": choice.index, "finish_reason": choice.finish_reason}
        if choice.finish_reason is not None:
            about["stop_reason"] = choice.stop_reason
            about["weight_version"] = choice.metadata["weight_version"]
        if self.body.return_token_ids:
            about["token_ids"] = chunk.token_ids
        return about

    def _usage(self) -> JSON:
        return token_counts([choice.metadata for choice in self.choices], self.call.n)

    def first_events(self) -> list[str]:
        """The events before the first chunk of any choice."""
        return []

    def last_events(self) -> list[str]:
        """The events after all choices have ended."""
        return [self._text(self.event_name, [], usage=self._usage())] if self._usage_asked else []

    def _prompt_logprobs(self, row: GenerationRow) -> JSON:
        """Each prompt token's own log prob in vLLM's form, without a rank."""
        if self.body.prompt_logprobs is None or row.prompt_logprobs is None:
            return {}
        entries: list[JSON | None] = []
        ids = self.call.prompt_ids(row.prompt_index)
        for token, value in zip(ids, row.prompt_logprobs, strict=True):
            about = {"logprob": value, "decoded_token": token_text(token, self._tokenizer)}
            entries.append(None if value is None else {str(token): about})
        return {"prompt_logprobs": entries}


class ChatResponses(Responses[ChatBody]):
    """Responses to `/v1/chat/completions`."""

    prefix, event_name = "chatcmpl", "chat.completion.chunk"

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        """The response to a request that is not streamed."""
        choices = []
        for choice, row in zip(self.choices, rows, strict=True):
            chunk = whole_chunk(row)
            choice.add(chunk)
            about = {"message": choice.message(), "logprobs": self._logprobs(chunk)}
            choices.append({**self._ended(choice, chunk), **about})
        more = self._prompt_ids() | self._prompt_logprobs(rows[0])
        return self._text("chat.completion", choices, usage=self._usage(), **more)

    def _prompt_ids(self) -> JSON:
        asked = self.body.return_token_ids
        return {"prompt_token_ids": self.call.prompt_ids(0)} if asked else {}

    def _logprobs(self, chunk: StreamChunk) -> JSON | None:
        return token_logprobs(
            chunk.token_ids,
            chunk.logprobs,
            chunk.top_logprobs,
            self._tokenizer,
            self.body.likeliest,
        )

    def first_events(self) -> list[str]:
        delta = {"role": "assistant", "content": ""}
        part = {"delta": delta, "finish_reason": None, "logprobs": None}
        parts = [{"index": choice.index, **part} for choice in self.choices]
        first = self._text(self.event_name, parts[:1], **self._prompt_ids())
        return [first, *(self._text(self.event_name, [each]) for each in parts[1:])]

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        """The events of one chunk of a choice."""
        content = choice.add(chunk)
        delta: JSON = {"content": content} if content else {}
        if choice.calls:
            delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(choice.calls)]
        part = {**self._ended(choice, chunk), "delta": delta, "logprobs": self._logprobs(chunk)}
        told = delta or "token_ids" in part or part["logprobs"] or part["finish_reason"]
        return [self._text(self.event_name, [part])] if told else []


class CompletionResponses(Responses[CompletionBody]):
    """Responses to `/v1/completions`."""

    prefix, event_name = "cmpl", "text_completion"

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        """The response to a request that is not streamed."""
        choices = [
            self._part(choice, whole_chunk(row)) | self._prompt_logprobs(row)
            for choice, row in zip(self.choices, rows, strict=True)
        ]
        return self._text(self.event_name, choices, usage=self._usage())

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        """The events of one chunk of a choice."""
        return [self._text(self.event_name, [self._part(choice, chunk)])]

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        ids = self.body.return_token_ids and not choice.token_ids  # with the first chunk
        part = {"text": choice.add(chunk), **self._ended(choice, chunk)}
        part["logprobs"] = self._logprobs(choice, chunk)
        return part | ({"prompt_token_ids": self.call.prompt_ids(choice.index)} if ids else {})

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
