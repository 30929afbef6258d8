"""vLLM's form with token ids: /completions with `return_token_ids`, which `inf serve` has too.

In: a `Request` with token ids. Out: the body to send; from the answer or its chunks a
`RequestOutput` with token ids and log probs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from _inf.backends.base import SUPPORTS
from _inf.backends.openai.text import cached_tokens, openai_params
from _inf.types import Request, RequestOutput, SamplingParams


class TokenForm:
    """The form for a server that takes and gives token ids.

    tempered: whether its log probs are of the logits after penalties and temperature, as ours are.
    vLLM's are of the raw logits, which is the same only at temperature 1 (or 0) without penalties;
    other rows have no log probs.
    """

    supports = SUPPORTS["openai with tokenizer_path"]

    def __init__(self, model: str, *, tempered: bool) -> None:
        self._model = model
        self._tempered = tempered

    def path(self, request: Request) -> str:
        return "/completions"

    def body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        params = request.params
        body = {
            "model": self._model,
            "prompt": request.token_ids,
            "max_tokens": params.max_tokens,
            "logprobs": 0,  # of the sampled token only
            "return_token_ids": True,
            # Always sent: vLLM would take other defaults from the model's generation config.
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
            "repetition_penalty": params.repetition_penalty,
            **openai_params(params),
        }
        if params.min_tokens:
            body["min_tokens"] = params.min_tokens
        if params.stop_token_ids:
            body["stop_token_ids"] = list(params.stop_token_ids)
        if params.ignore_eos:
            body["ignore_eos"] = True
        return body | ({"stream_options": {"include_usage": True}} if stream else {})

    def answer(self, request: Request) -> TokenAnswer:
        ours = self._tempered or _raw_logprobs_are_ours(request.params)
        return TokenAnswer(request, ours)

    def corrected(self, refusal: Exception) -> bool:
        return False


def _raw_logprobs_are_ours(params: SamplingParams) -> bool:
    return params.temperature in (0, 1) and params == dataclasses.replace(
        params,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias={},
        min_tokens=0,
        json_schema=None,
    )


@dataclasses.dataclass
class TokenAnswer:
    """An answer as far as it has arrived. ours: whether its log probs are by our definition."""

    request: Request
    ours: bool
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_version: int = 0  # that `inf serve` names
    usage: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a whole answer, or the next chunk of a stream."""
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"][:1]:
            ids = choice.get("token_ids") or []
            self.token_ids += ids
            if self.ours and ids:
                self.logprobs += choice["logprobs"]["token_logprobs"]
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if (stop := choice.get("stop_reason")) is not None:
                self.stop_reason = stop
            self.weight_version = choice.get("weight_version") or self.weight_version

    def output(self, *, finished: bool) -> RequestOutput:
        ids = list(self.token_ids)
        logprobs = list(self.logprobs) if self.ours else [math.nan] * len(ids)
        if finished and len(logprobs) != len(ids):
            raise ValueError("it has not one log prob per token")
        stop = self.stop_reason
        if stop is None and ids and ids[-1] in self.request.params.stop_token_ids:
            stop = ids[-1]  # vLLM does not name the model's own EOS
        return RequestOutput(
            token_ids=ids,
            logprobs=logprobs,
            prompt_logprobs=[],
            finish_reason=self.finish_reason if finished else None,
            matched_stop=stop if self.finish_reason == "stop" else None,
            prompt_tokens=len(self.request.token_ids),
            completion_tokens=len(ids),
            cached_tokens=cached_tokens(self.usage),
            weight_version=self.weight_version,
        )
