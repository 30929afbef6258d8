"""Makes OpenAI's responses and stream events of a request's choices, in the form of the `openai`
package's types, with vLLM's `prompt_token_ids`, `token_ids`, `stop_reason` and `prompt_logprobs`,
and our `weight_version`. Joined, a stream's events are the whole response."""

from __future__ import annotations

import itertools
import json
import math
import time
import uuid
from collections.abc import Sequence
from typing import Any

from _inf.apps.openai_format import token_logprobs, token_text, usage
from _inf.apps.serve.bodies import ChatBody, CompletionBody
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.choice import Choice, whole_chunk
from _inf.response.row import GenerationRow
from _inf.response.streaming import StreamChunk

JSON = dict[str, Any]


class Responses:
    """What the responses to both routes share. model: the name of the served model."""

    form: type[ChatBody | CompletionBody]
    prefix: str
    name: str  # the `object` of a response
    event_name: str  # and of a stream's events

    def __init__(self, call: ServedCall, body: ChatBody | CompletionBody, model: str) -> None:
        self.call, self.body = call, body
        self.choices = [Choice(call, row) for row in range(len(call.own))]
        self._tokenizer = call.rules.model.tokenizer
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        self._about = {"id": name, "created": int(time.time()), "model": model}
        self._usage_asked = bool(body.stream_options and body.stream_options.include_usage)

    def _text(self, name: str, choices: Sequence[JSON], **more: Any) -> str:
        value = {**self._about, "object": name, "choices": choices, **more}
        return json.dumps(value, allow_nan=False)

    def _event(self, *choices: JSON, **more: Any) -> str:
        usage = {"usage": None} if self._usage_asked else {}
        return self._text(self.event_name, choices, **(usage | more))

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        parts = [
            {**self._part(choice, whole_chunk(row)), **self._prompt_logprobs(choice, row)}
            for choice, row in zip(self.choices, rows, strict=True)
        ]
        return self._text(self.name, parts, usage=self._usage())

    def first_events(self) -> list[str]:
        return []

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        return [self._event(self._part(choice, chunk))]

    def last_events(self) -> list[str]:
        return [self._event(usage=self._usage())] if self._usage_asked else []

    def record(self) -> None:
        """Add the finished choices to the session, if there is one."""
        if (session := self.call.session) is not None:
            for each in zip(self.call.starts, self.call.prompt_ids, self.choices, strict=True):
                session.add(*each)

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        """Add a chunk to a choice; return what it says of the choice."""
        raise NotImplementedError

    def _named(self, choice: Choice, chunk: StreamChunk) -> JSON:
        """Which choice it is, why it ended, and the chunk's ids if they were asked for."""
        about: JSON = {"index": choice.index, "finish_reason": choice.finish_reason}
        if choice.finish_reason is not None:
            about["stop_reason"] = choice.stop_reason
            about["weight_version"] = choice.output.weight_version
        if self.body.return_token_ids:
            about["token_ids"] = chunk.token_ids
        return about

    def _usage(self) -> JSON:
        return usage([choice.output for choice in self.choices], self.call.n)

    def _prompt_logprobs(self, choice: Choice, row: GenerationRow) -> JSON:
        """Each prompt token's own log prob in vLLM's form, without a rank."""
        if self.body.prompt_logprobs is None or row.prompt_logprobs is None:
            return {}
        entries: list[JSON | None] = []
        ids = self.call.prompt_ids[choice.index]
        for token, value in zip(ids, row.prompt_logprobs, strict=True):
            about = {"logprob": value, "decoded_token": token_text(token, self._tokenizer)}
            entries.append(None if value is None else {str(token): about})
        return {"prompt_logprobs": entries}


class ChatResponses(Responses):
    form = ChatBody
    prefix, name, event_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        parts = []
        for choice, row in zip(self.choices, rows, strict=True):
            part = self._part(choice, whole_chunk(row))
            del part["delta"]
            parts.append({**part, "message": choice.message})
        more = {**self._prompt_ids(), **self._prompt_logprobs(self.choices[0], rows[0])}
        return self._text(self.name, parts, usage=self._usage(), **more)

    def _prompt_ids(self) -> JSON:
        asked = self.body.return_token_ids
        return {"prompt_token_ids": self.call.prompt_ids[0]} if asked else {}

    def first_events(self) -> list[str]:
        delta = {"role": "assistant", "content": ""}
        part = {"delta": delta, "finish_reason": None, "logprobs": None}
        parts = [{"index": choice.index, **part} for choice in self.choices]
        first = self._event(parts[0], **self._prompt_ids())
        return [first, *map(self._event, parts[1:])]

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        part = self._part(choice, chunk)
        says = ("delta", "token_ids", "logprobs", "finish_reason")
        return [self._event(part)] if any(part.get(name) for name in says) else []

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        content = choice.add(chunk)
        delta: JSON = {"content": content} if content else {}
        if calls := choice.message.get("tool_calls"):
            delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
        logprobs = token_logprobs(chunk, self._tokenizer, self.body.likeliest)
        return {**self._named(choice, chunk), "delta": delta, "logprobs": logprobs}


class CompletionResponses(Responses):
    form = CompletionBody
    prefix, name, event_name = "cmpl", "text_completion", "text_completion"

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        begins = not choice.output.token_ids
        part = {"text": choice.add(chunk), **self._named(choice, chunk)}
        if self.body.return_token_ids and begins:
            part["prompt_token_ids"] = self.call.prompt_ids[choice.index]
        return {**part, "logprobs": self._logprobs(choice, chunk)}

    def _logprobs(self, choice: Choice, chunk: StreamChunk) -> JSON | None:
        """The log probs in the form of OpenAI's completions. Of likely tokens with one text the
        likeliest is given."""
        if self.body.likeliest is None or any(map(math.isnan, chunk.logprobs)):
            return None
        texts = [token_text(token, self._tokenizer) for token in chunk.token_ids]
        offsets = [*itertools.accumulate(map(len, texts), initial=choice.text_offset)]
        choice.text_offset = offsets.pop()
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
