"""Makes OpenAI's responses and stream events of a request's choices.

In: a `ServedCall`, its body, and the rows or chunks of its answer. Out: JSON text of the `openai`
package's types, with vLLM's `prompt_token_ids`, `token_ids`, `stop_reason` and `prompt_logprobs`
beside them, and our `weight_version`. Joined, the events of a stream are the whole response.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from _inf.apps.openai_format import token_counts, token_logprobs, token_text
from _inf.apps.serve.bodies import ChatBody, CompletionBody
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.choice import Choice, whole_chunk
from _inf.response.output import GenerationRow
from _inf.response.streaming import StreamChunk

BodyT = TypeVar("BodyT", ChatBody, CompletionBody)
JSON = dict[str, Any]


class _RunningChoice(CompletionChoice):
    """The package's type, with the value of a choice that has not ended."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class _CompletionEvent(Completion):
    choices: list[_RunningChoice]  # type: ignore[assignment]


class Responses(Generic[BodyT]):
    """What the responses to both routes share. model: the name of the served model."""

    prefix: str
    event_name: str
    event_type: type[BaseModel]

    def __init__(self, call: ServedCall, body: BodyT, model: str) -> None:
        self.call = call
        self.body: BodyT = body
        self.choices = [Choice(call, row) for row in range(call.rows)]
        self._tokenizer = call.rules.model.tokenizer
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        self._about = {"id": name, "created": int(time.time()), "model": model}
        self._usage_asked = body.stream_options is not None and body.stream_options.include_usage

    def _ended(self, choice: Choice, chunk: StreamChunk) -> JSON:
        """The fields of a choice that say why it ended, and its ids if they were asked for."""
        about: JSON = {"index": choice.index, "finish_reason": choice.finish_reason}
        if choice.finish_reason is not None:
            about["stop_reason"] = choice.stop_reason
            about["weight_version"] = choice.weight_version
        if self.body.return_token_ids:
            about["token_ids"] = chunk.token_ids
        return about

    def _usage(self) -> JSON:
        """The token counts; a prompt counts once for all its choices."""
        outputs = [choice.output for choice in self.choices if choice.output is not None]
        prompt = sum(output.prompt_tokens for output in outputs[:: self.call.n])
        completion = sum(output.completion_tokens for output in outputs)
        cached = sum(output.cached_tokens for output in outputs[:: self.call.n])
        return token_counts(prompt, completion, cached)

    def _usage_field(self) -> JSON:
        """The usage of an event that does not have it."""
        return {"usage": None} if self._usage_asked else {}

    def last_events(self) -> Iterator[str]:
        """The events after all choices have ended."""
        if self._usage_asked:
            yield self._event([], usage=self._usage())

    def _event(self, choices: list[JSON], **more: Any) -> str:
        event = {**self._about, "object": self.event_name, "choices": choices, **more}
        return self.event_type.model_validate(event).model_dump_json(exclude_unset=True)

    def _prompt_logprobs(self, row: GenerationRow) -> JSON:
        """Each prompt token's own log prob in vLLM's form, without a rank."""
        if self.body.prompt_logprobs is None or row.prompt_logprobs is None:
            return {}
        ids = self.call.prompt_ids(row.metadata["prompt_index"])
        return {
            "prompt_logprobs": [
                None
                if value is None
                else {
                    str(token): {
                        "logprob": value,
                        "decoded_token": token_text(token, self._tokenizer),
                    }
                }
                for token, value in zip(ids, row.prompt_logprobs, strict=True)
            ]
        }


class ChatResponses(Responses[ChatBody]):
    """Responses to `/v1/chat/completions`."""

    prefix, event_name, event_type = "chatcmpl", "chat.completion.chunk", ChatCompletionChunk

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        """The response to a request that is not streamed."""
        choices = []
        for choice, row in zip(self.choices, rows, strict=True):
            chunk = whole_chunk(row)
            choice.add(chunk)
            about = {"message": choice.message(), "logprobs": self._logprobs(chunk)}
            choices.append({**self._ended(choice, chunk), **about})
        response = {
            **self._about,
            "object": "chat.completion",
            "choices": choices,
            "usage": self._usage(),
            **self._prompt_ids(),
            **self._prompt_logprobs(rows[0]),
        }
        return ChatCompletion.model_validate(response).model_dump_json(exclude_unset=True)

    def _prompt_ids(self) -> JSON:
        asked = self.body.return_token_ids
        return {"prompt_token_ids": self.call.prompt_ids(0)} if asked else {}

    def _logprobs(self, chunk: StreamChunk) -> JSON | None:
        likeliest = self.body.likeliest
        if likeliest is None:
            return None
        tops = chunk.top_logprobs
        return token_logprobs(chunk.token_ids, chunk.logprobs, tops, self._tokenizer, likeliest)

    def first_events(self) -> Iterator[str]:
        """The events before the first chunk of any choice."""
        ids = self._prompt_ids()
        for choice in self.choices:
            delta = {"role": "assistant", "content": ""}
            part = {"index": choice.index, "delta": delta, "finish_reason": None, "logprobs": None}
            yield self._event([part], **ids, **self._usage_field())
            ids = {}

    def events(self, choice: Choice, chunk: StreamChunk) -> Iterator[str]:
        """The events of one chunk of a choice."""
        content = choice.add(chunk)
        delta: JSON = {"content": content} if content else {}
        if choice.calls:
            delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(choice.calls)]
        part = {**self._ended(choice, chunk), "delta": delta, "logprobs": self._logprobs(chunk)}
        if delta or "token_ids" in part or part["logprobs"] or part["finish_reason"]:
            yield self._event([part], **self._usage_field())


class CompletionResponses(Responses[CompletionBody]):
    """Responses to `/v1/completions`."""

    prefix, event_name, event_type = "cmpl", "text_completion", _CompletionEvent

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        """The response to a request that is not streamed."""
        choices = []
        for choice, row in zip(self.choices, rows, strict=True):
            chunk = whole_chunk(row)
            choices.append(self._part(choice, chunk) | self._prompt_logprobs(row))
        return self._event(choices, usage=self._usage())

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        first = not choice.started
        text = choice.add(chunk)
        part = {**self._ended(choice, chunk), "text": text}
        part["logprobs"] = self._logprobs(choice, chunk)
        if first and self.body.return_token_ids:
            part["prompt_token_ids"] = self.call.prompt_ids(choice.index)
        return part

    def _logprobs(self, choice: Choice, chunk: StreamChunk) -> JSON | None:
        """The log probs in the form of OpenAI's completions."""
        if self.body.likeliest is None:
            return None
        tokens = [token_text(token, self._tokenizer) for token in chunk.token_ids]
        offsets = []
        for token in tokens:
            offsets.append(choice.text_offset)
            choice.text_offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": chunk.logprobs,
            "top_logprobs": self._tops(chunk.top_logprobs or [{} for _ in tokens]),
            "text_offset": offsets,
        }

    def _tops(self, tops: Sequence[Mapping[int, float]]) -> list[dict[str, float]]:
        """The likeliest tokens by their texts; of tokens with one text the likeliest is given."""
        named: list[dict[str, float]] = []
        for top in tops:
            named.append({})
            for token, logprob in top.items():
                named[-1].setdefault(token_text(token, self._tokenizer), logprob)
        return named

    def first_events(self) -> Iterator[str]:
        """The events before the first chunk of any choice."""
        return iter(())

    def events(self, choice: Choice, chunk: StreamChunk) -> Iterator[str]:
        """The events of one chunk of a choice."""
        yield self._event([self._part(choice, chunk)], **self._usage_field())
