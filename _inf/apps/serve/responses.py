"""Makes OpenAI's responses and stream events of a request's choices, in the form of the `openai`
package's types, with vLLM's `prompt_token_ids`, `token_ids`, `stop_reason` and `prompt_logprobs`,
and our `weight_version`. Joined, a stream's events are the whole response."""

from __future__ import annotations

import itertools
import json
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from _inf.apps.openai_answers import of_parts, token_logprobs, token_name, usage
from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.bodies import ChatBody, TranslatedChat, read_body
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.choice import Choice, whole_chunk
from _inf.apps.serve.completion_bodies import CompletionBody
from _inf.response.decode import decoded_text
from _inf.response.row import GenerationRow
from _inf.response.streaming import StreamChunk
from _inf.response.token_texts import TokenTexts
from _inf.types import JSON

_encoder = json.JSONEncoder(allow_nan=False)
# Null where there is none: the `openai` package has no attribute for a field that is absent.
NO_THOUGHT: Mapping[str, object] = {"reasoning": None, "reasoning_content": None}
OF_AN_END = "finish_reason stop_reason matched_stop weight_version weight_versions".split()


BodyT = TypeVar("BodyT", ChatBody, TranslatedChat, CompletionBody)


def event_text(data: str, name: str | None = None) -> str:
    """A server-sent event."""
    return f"data: {data}\n\n" if name is None else f"event: {name}\ndata: {data}\n\n"


def response_text(response: JSON | list[JSON]) -> str:
    """A response as JSON, in steps between which other threads run: `json.dumps` holds the
    interpreter for seconds if there are many choices."""
    return "".join(_encoder.iterencode(response))


class Responses(Generic[BodyT]):
    """What the responses to all routes share. model: the name of the served model."""

    form: type[BodyT]
    sent_form: type[RequestBody] | None = None  # of a request that `form` is the translation of
    prefix: str
    name: str  # the `object` of a response
    event_name: str  # and of a stream's events
    headers: Mapping[str, str] = {}  # of the response
    ping = ": ping\n\n"  # what a stream sends while it holds back its text: a comment

    @classmethod
    def read(cls, data: bytes, template: str) -> BodyT:
        """Read a request's body. template: the model's, of chats."""
        if cls.sent_form is None:
            return read_body(cls.form, data)
        translated: Any = cls.form
        return cast(BodyT, translated.of(read_body(cls.sent_form, data), template))

    def __init__(self, call: ServedCall, body: BodyT, model: str) -> None:
        self.call = call
        self.body: BodyT = body
        self.choices = [Choice(call, row) for row in range(call.rows)]
        self._tokenizer = call.rules.model.tokenizer
        name = f"{self.prefix}-{uuid.uuid4().hex}"
        self._head: JSON = {"id": name, "created": int(time.time()), "model": model}
        asked = body.stream_options
        self._usage_asked = bool(asked and asked.include_usage)
        self._usage_so_far = bool(asked and asked.continuous_usage_stats)

    def _about(self, name: str) -> JSON:
        """What a response, or each event of a stream, begins with."""
        return {**self._head, "object": name}

    def _event(self, *choices: JSON, **more: object) -> str:
        usage = {"usage": self._running_usage()} if self._usage_asked else {}
        about = {**self._about(self.event_name), "choices": choices}
        return event_text(_encoder.encode({**about, **usage, **more}))

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        pairs = zip(self.choices, rows, strict=True)
        parts = [self._whole(choice, row) | of_parts(row) for choice, row in pairs]
        about = {**self._about(self.name), "choices": parts, "usage": self._usage()}
        return response_text(about | self._of_prompt(rows[0]))

    def _whole(self, choice: Choice, row: GenerationRow) -> JSON:
        return self._part(choice, whole_chunk(row))

    def _of_prompt(self, row: GenerationRow) -> JSON:
        """What a response says of its one prompt, in addition to its choices."""
        return self._prompt_logprobs(self.choices[0], row)

    def first_events(self) -> list[str]:
        return []

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        return [self._event(self._part(choice, chunk))]

    def last_events(self) -> list[str]:
        done = event_text("[DONE]")
        return [self._event(usage=self._usage()), done] if self._usage_asked else [done]

    def failed(self, error: JSON) -> str:
        """The last event of a stream that fails. error: the body of an error's response."""
        return event_text(json.dumps(error))

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        """Add a chunk to a choice; return what it says of the choice."""
        raise NotImplementedError

    def _named(self, choice: Choice, chunk: StreamChunk) -> JSON:
        """Which choice it is, why it ended, and the chunk's ids if they were asked for."""
        fields: JSON = {"index": choice.index, "finish_reason": choice.finish_reason}
        if choice.finish_reason is not None:
            fields["stop_reason"] = choice.stop_reason
            fields["matched_stop"] = choice.output.matched_stop  # SGLang's name, also of an EOS
            fields["weight_version"] = choice.output.weight_version
            fields["weight_versions"] = choice.output.weight_versions
        fields["token_ids"] = chunk.token_ids if self.body.return_token_ids else None
        return fields

    def _content_logprobs(self, choice: Choice, chunk: StreamChunk) -> JSON | None:
        """The log probs in the form of OpenAI's chats."""
        as_ids = self.body.return_tokens_as_token_ids
        return token_logprobs(chunk, choice.texts, self.body.likeliest, as_ids=as_ids)

    def _usage(self) -> JSON:
        return usage([choice.output for choice in self.choices], self.call.n)

    def _running_usage(self) -> JSON | None:
        if not self._usage_so_far:
            return None
        prompt = sum(map(len, self.call.prompts))
        sampled = sum(len(choice.output.token_ids) for choice in self.choices)
        total = {"total_tokens": prompt + sampled}
        return {"prompt_tokens": prompt, "completion_tokens": sampled, **total}

    def _prompt_logprobs(self, choice: Choice, row: GenerationRow) -> JSON:
        """The prompt's log probs in vLLM's form (`Logprob`). The rank of a token that is not among
        the likeliest k is k + 1, which is the least that it can be."""
        most = self.body.prompt_logprobs
        if most is None or row.prompt_logprobs is None:
            return {"prompt_logprobs": None}
        ids = self.call.prompt_ids(choice.index)
        entries: list[JSON | None] = []
        texts = TokenTexts(self._tokenizer)
        for place, (token, value, top) in zip(texts.add(ids), _scored(ids, row), strict=True):
            named = {} if value is None else _likeliest(top, most, token, value)
            entry = {
                str(likely): {
                    "logprob": logprob,
                    "rank": rank if most else None,
                    "decoded_token": texts.other(likely, place).text,
                }
                for rank, (likely, logprob) in enumerate(named.items(), 1)
            }
            entries.append(entry or None)
        return {"prompt_logprobs": entries}


def _scored(
    ids: Sequence[int], row: GenerationRow
) -> list[tuple[int, float | None, Mapping[int, float]]]:
    """Each prompt token, its log prob, and the likeliest tokens at its place, if asked for."""
    values = row.prompt_logprobs or [None for _ in ids]
    tops = row.top_prompt_logprobs or [{} for _ in ids]
    return [(t, value, top or {}) for t, value, top in zip(ids, values, tops, strict=True)]


def _likeliest(top: Mapping[int, float], most: int, token: int, logprob: float) -> dict[int, float]:
    """The likeliest tokens at a place, at most so many, and the one that stands there."""
    return {**dict(itertools.islice(top.items(), most)), token: logprob}


class ChatResponses(Responses[ChatBody]):
    form = ChatBody
    prefix, name, event_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _whole(self, choice: Choice, row: GenerationRow) -> JSON:
        part = super()._whole(choice, row)
        del part["delta"]
        return {**part, "message": {**NO_THOUGHT, **choice.message}}

    def _of_prompt(self, row: GenerationRow) -> JSON:
        return {**self._prompt_ids(), **super()._of_prompt(row)}

    def _prompt_ids(self) -> JSON:
        asked = self.body.return_token_ids
        return {"prompt_token_ids": self.call.prompts[0] if asked else None}

    def first_events(self) -> list[str]:
        delta = {"role": "assistant", "content": "", **NO_THOUGHT}
        part = {"delta": delta, "finish_reason": None, "logprobs": None}
        parts = [{"index": choice.index, **part} for choice in self.choices]
        first = self._event(parts[0], **self._prompt_ids())
        return [first, *map(self._event, parts[1:])]

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        part = self._part(choice, chunk)
        if "tool_calls" in part["delta"]:  # clients take a call as complete at the next event
            end = {name: part.pop(name) for name in OF_AN_END}
            last = {"index": choice.index, "delta": {**NO_THOUGHT}, "logprobs": None, **end}
            return [self._event({**part, "finish_reason": None}), self._event(last)]
        says = (part[name] for name in ("token_ids", "logprobs", "finish_reason"))
        return [self._event(part)] if any([*says, *part["delta"].values()]) else []

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        thought, content = choice.add(chunk)
        delta: JSON = dict.fromkeys(NO_THOUGHT, thought or None)
        if content:
            delta["content"] = content
        if calls := choice.message.get("tool_calls"):
            delta["tool_calls"] = [{"index": n, **call} for n, call in enumerate(calls)]
        logprobs = self._content_logprobs(choice, chunk)
        return {**self._named(choice, chunk), "delta": delta, "logprobs": logprobs}


class CompletionResponses(Responses[CompletionBody]):
    form = CompletionBody
    prefix, name, event_name = "cmpl", "text_completion", "text_completion"

    def _of_prompt(self, row: GenerationRow) -> JSON:
        return {}  # its choices have several

    def _whole(self, choice: Choice, row: GenerationRow) -> JSON:
        if not self.body.echo:
            return self._scored_part(choice, row)
        prompt, text = _scored(self.call.prompt_ids(choice.index), row), self._prompt_text(choice)
        # A tokenizer's BOS is in the ids of a text, and not in the text.
        first = decoded_text([prompt[0][0]], self._tokenizer, skip_special_tokens=False)
        hidden = () if text.startswith(first) else self._tokenizer.all_special_ids
        scored = self._old_form(TokenTexts(self._tokenizer, hidden=hidden), prompt)
        choice.texts.offset = len(text)
        part = self._scored_part(choice, row)
        if scored is not None and part["logprobs"] is not None:
            part["logprobs"] = {name: scored[name] + part["logprobs"][name] for name in scored}
        return {**part, "text": text + part["text"]}

    def _scored_part(self, choice: Choice, row: GenerationRow) -> JSON:
        return {**super()._whole(choice, row), **self._prompt_logprobs(choice, row)}

    def first_events(self) -> list[str]:
        """The echoed prompts; a stream does not give their log probs."""
        if not self.body.echo:
            return []
        empty: JSON = {"finish_reason": None, "logprobs": None, "prompt_token_ids": None}
        empty["token_ids"] = [] if self.body.return_token_ids else None
        return [
            self._event({"index": choice.index, "text": self._prompt_text(choice), **empty})
            for choice in self.choices
        ]

    def _prompt_text(self, choice: Choice) -> str:
        given = self.body.prompts()[choice.index // self.call.n]
        if "text" in given:
            return str(given["text"])
        ids = self.call.prompt_ids(choice.index)
        return decoded_text(ids, self._tokenizer, skip_special_tokens=False)

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        begins, start = not choice.output.token_ids, len(choice.text)
        choice.add(chunk)
        part = {"text": choice.text[start:], **self._named(choice, chunk)}
        asked = self.body.return_token_ids and begins
        part["prompt_token_ids"] = self.call.prompt_ids(choice.index) if asked else None
        tops = chunk.top_logprobs or [{} for _ in chunk.token_ids]
        tokens = [*zip(chunk.token_ids, chunk.logprobs, tops, strict=True)]
        return {**part, "logprobs": self._old_form(choice.texts, tokens)}

    def _old_form(
        self, texts: TokenTexts, tokens: Sequence[tuple[int, float | None, Mapping[int, float]]]
    ) -> JSON | None:
        """The log probs in the form of OpenAI's completions: of each token, and with it of the
        likeliest at its place; of several with one text the first is given. None stands for the
        first token of a prompt. texts: it adds the tokens to them."""
        most = self.body.likeliest
        if most is None or any(value is not None and math.isnan(value) for _, value, _ in tokens):
            return None
        as_ids = self.body.return_tokens_as_token_ids
        places = texts.add([token for token, *_ in tokens])
        tops: list[dict[str, float] | None] = []
        for place, (token, value, top) in zip(places, tokens, strict=True):
            likely = {} if value is None else {token: value} | _likeliest(top, most, token, value)
            named: dict[str, float] = {}
            for other, logprob in likely.items():
                named.setdefault(token_name(texts.other(other, place), as_ids=as_ids), logprob)
            tops.append(None if value is None else named)
        return {
            "tokens": [token_name(place, as_ids=as_ids) for place in places],
            "token_logprobs": [value for _, value, _ in tokens],
            "top_logprobs": tops,
            "text_offset": [place.offset for place in places],
        }
