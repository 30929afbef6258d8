"""The form of SGLang's own route /generate, with token ids, read against sglang 0.5.9.

SGLang's log probs are by our definition.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from _inf.backends.openai.text import Answer
from _inf.backends.openai.tokens import TokenForm
from _inf.errors import ConfigError, RequestFailure
from _inf.types import Request, RequestOutput, SamplingParams


class GenerateForm:
    """The form for SGLang's server. root: its address, without the /v1 of OpenAI's routes."""

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
