"""The forms with token ids: vLLM's and that of SGLang's server."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

from _inf.backends.openai import TOKEN_MODE
from _inf.backends.openai.text import Answer, OpenAIAnswer, TextForm, openai_params
from _inf.errors import ConfigError, RequestFailure
from _inf.request.keywords import NEUTRAL
from _inf.types import Request, RequestOutput, SamplingParams

# vLLM would take other defaults from the model's generation config.
ALWAYS = ("top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos")
ADJUST_LOGITS = (
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("min_tokens", "json_schema"),
)


class TokenForm:
    """vLLM's form: /completions with `return_token_ids`, which `inf serve` has too.

    tempered: whether its log probs are of the logits after penalties and temperature, as ours are.
    vLLM's are of the raw logits, which is the same only at temperature 1 (or 0) without penalties;
    other rows have no log probs.
    """

    supports = TOKEN_MODE.supports
    in_stream = TextForm.in_stream

    def __init__(self, model: str, *, tempered: bool) -> None:
        self._model = model
        self._tempered = tempered

    def sent(self, request: Request) -> tuple[str, dict[str, Any]]:
        params = request.params
        return "/completions", {
            "model": self._model,
            "prompt": request.token_ids,
            "max_tokens": params.max_tokens,
            "logprobs": 0,  # of the sampled token only
            "return_token_ids": True,
            **openai_params(params),
            **{name: getattr(params, name) for name in ALWAYS},
            "stop_token_ids": list(params.stop_token_ids),
        }

    def answer(self, request: Request) -> Answer:
        ours = self._tempered or _raw_logprobs_are_ours(request.params)
        return TokenAnswer(request=request, ours=ours)


def _raw_logprobs_are_ours(params: SamplingParams) -> bool:
    return params.temperature in (0, 1) and all(
        getattr(params, name) == NEUTRAL[name] for name in ADJUST_LOGITS
    )


@dataclasses.dataclass(kw_only=True)
class TokenAnswer(OpenAIAnswer):
    """An answer of token ids. ours: whether its log probs are by our definition."""

    request: Request
    ours: bool
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    stop: int | str | None = None
    weight_version: int = 0  # that `inf serve` names

    def __call__(self, chunk: Mapping[str, Any]) -> RequestOutput:
        choice = self.choice(chunk)
        if new := choice.get("token_ids"):
            own = choice["logprobs"]["token_logprobs"] if self.ours else [math.nan] * len(new)
            self.token_ids += new
            self.logprobs += own
        if (stop := choice.get("stop_reason")) is not None:
            self.stop = stop
        self.weight_version = choice.get("weight_version") or self.weight_version
        ids, stop = list(self.token_ids), self.stop
        if len(self.logprobs) != len(ids):
            raise ValueError("it has not one log prob per token")
        if stop is None and ids and ids[-1] in self.request.params.stop_token_ids:
            stop = ids[-1]  # vLLM does not name the model's own EOS
        return RequestOutput(
            token_ids=ids,
            logprobs=list(self.logprobs),
            finish_reason=self.finish_reason,
            matched_stop=stop if self.finish_reason == "stop" else None,
            prompt_tokens=len(self.request.token_ids),
            completion_tokens=len(ids),
            cached_tokens=self.cached_tokens,
            weight_version=self.weight_version,
        )


class GenerateForm:
    """The form of the route /generate of SGLang's server, read against 0.5.9, whose log probs are
    by our definition. root: the server's address, without the /v1 of OpenAI's routes."""

    # It ignores `repetition_penalty`, and seeds unless it was started for them.
    supports = TokenForm.supports - {"seed", "repetition_penalty"} | {"regex"}
    in_stream: Mapping[str, Any] = {}

    def __init__(self, root: str) -> None:
        self.url = f"{root}/generate"

    def sent(self, request: Request) -> tuple[str, dict[str, Any]]:
        return self.url, {
            "input_ids": request.token_ids,
            "sampling_params": _sampling_params(request.params),
            "return_logprob": True,
        }

    def answer(self, request: Request) -> Answer:
        return functools.partial(_row, request)


def _sampling_params(params: SamplingParams) -> dict[str, Any]:
    if params.ignore_eos and params.stop_token_ids:
        raise ConfigError.of(
            "ignore_eos", "SGLang's server then ignores stop_token_ids too; leave one of them out."
        )
    same = (
        *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
        *("ignore_eos", "json_schema", "regex"),
    )
    named = {name: getattr(params, name) for name in same}
    named |= {"stop": list(params.stop), "stop_token_ids": list(params.stop_token_ids)}
    named["logit_bias"] = dict(params.logit_bias) or None
    named |= {"max_new_tokens": params.max_tokens, "min_new_tokens": params.min_tokens}
    return {name: value for name, value in named.items() if value is not None}


def _row(request: Request, chunk: Mapping[str, Any]) -> RequestOutput:
    """Return the answer so far, which each chunk has from its beginning on."""
    ids, about = list(chunk["output_ids"]), chunk["meta_info"]
    reason = about["finish_reason"] or {}
    if reason and reason["type"] == "abort":
        raise RequestFailure(f"The server aborted the request: {reason.get('message')}.")
    return RequestOutput(
        token_ids=ids,
        logprobs=[logprob for logprob, *_ in about["output_token_logprobs"]][: len(ids)],
        finish_reason=reason.get("type"),
        matched_stop=reason.get("matched"),
        prompt_tokens=len(request.token_ids),
        completion_tokens=len(ids),
        cached_tokens=about.get("cached_tokens") or 0,
    )
