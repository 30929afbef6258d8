"""Makes the responses of the routes that take token ids: vLLM's (main at 0001948,
`entrypoints/serve/disagg/serving.py`) and SGLang's (0.5.9, `managers/tokenizer_manager.py`)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence

from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.choice import Choice
from _inf.apps.serve.completion_bodies import CompletionBody
from _inf.apps.serve.responses import Responses, event_text, response_text
from _inf.apps.serve.token_bodies import (
    SglangBody,
    SglangCompletion,
    TokensBody,
    TokensCompletion,
)
from _inf.response.row import GenerationRow
from _inf.response.streaming import StreamChunk
from _inf.response.token_texts import TokenText
from _inf.types import JSON


class TokensResponses(Responses[CompletionBody]):
    """Of vLLM's route: the form of its completions, without text."""

    form, sent_form = TokensCompletion, TokensBody
    body: TokensCompletion
    prefix, name, event_name = "generate-tokens", "", ""

    def _about(self, name: str) -> JSON:
        return {"request_id": self.body._sent.request_id or self._head["id"]}

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        choice.add(chunk)
        logprobs = self._content_logprobs(choice, chunk)
        if self.body.likeliest == 0:  # as vLLM: the sampled token is listed
            for entry in logprobs["content"] if logprobs else ():
                entry["top_logprobs"] = [{k: v for k, v in entry.items() if k != "top_logprobs"}]
        return {**self._named(choice, chunk), "logprobs": logprobs}


class SglangResponses(Responses[CompletionBody]):
    """Of SGLang's route: a dict for each answer, or a list of them for several. Each event of a
    stream has all tokens so far."""

    form, sent_form = SglangCompletion, SglangBody
    prefix, name, event_name = "generate", "", ""

    def __init__(self, call: ServedCall, body: SglangCompletion, model: str) -> None:
        super().__init__(call, body, model)
        self._begun = time.monotonic()
        self._asked: SglangBody = body._sent
        self._single = not self._asked.is_batch and call.n == 1
        self._tokens: list[list[TokenText]] = [[] for _ in self.choices]  # of each, so far

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        pairs = zip(self.choices, rows, strict=True)
        parts = [self._whole(choice, row) for choice, row in pairs]
        return response_text(parts[0] if self._single else parts)

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        index = {} if self._single else {"index": choice.index}
        part = {**self._part(choice, chunk), **index}
        return [event_text(json.dumps(part, allow_nan=False))]

    def _part(self, choice: Choice, chunk: StreamChunk) -> JSON:
        choice.add(chunk)
        output, ids = choice.output, choice.output.token_ids
        rid = self._asked.rid or self._head["id"]
        meta_info: JSON = {
            "id": rid if self._single else f"{rid}_{choice.index}",
            "finish_reason": _why(choice),
            "prompt_tokens": len(self.call.prompt_ids(choice.index)),
            "completion_tokens": len(ids),
            "cached_tokens": output.cached_tokens,
            "weight_version": str(output.weight_version),
        }
        if choice.finish_reason is not None:
            meta_info["e2e_latency"] = time.monotonic() - self._begun
        if self._asked.return_logprob:
            tokens = self._tokens[choice.index]
            tokens += choice.texts.add(chunk.token_ids)
            meta_info["input_token_logprobs"] = []
            meta_info["output_token_logprobs"] = [
                self._entry(*pair) for pair in zip(tokens, output.logprobs, strict=True)
            ]
            if most := self._asked.top_logprobs_num:
                meta_info["output_top_logprobs"] = [
                    [
                        self._entry(choice.texts.other(token, place), logprob)
                        for token, logprob in list(top.items())[:most]
                    ]
                    for place, top in zip(tokens, choice.top_logprobs, strict=False)
                ]
        return {"text": choice.text, "output_ids": ids, "meta_info": meta_info}

    def _entry(self, token: TokenText, logprob: float) -> list[object]:
        text = token.text if self._asked.return_text_in_logprobs else None
        return [None if math.isnan(logprob) else logprob, token.token, text]


def _why(choice: Choice) -> JSON | None:
    """Why an answer ended, in SGLang's form (0.5.9, `managers/schedule_batch.py`)."""
    match choice.finish_reason:
        case None:
            return None
        case "length":
            return {"type": "length", "length": len(choice.output.token_ids)}
        case reason:
            return {"type": reason, "matched": choice.output.matched_stop}
