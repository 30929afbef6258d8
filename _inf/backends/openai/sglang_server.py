"""The form of SGLang's own server, read against 0.5.9: its route /generate."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from _inf.backends.openai.text import Answer
from _inf.errors import ConfigError, RequestFailure
from _inf.types import Request, RequestOutput, SamplingParams


@dataclasses.dataclass(frozen=True)
class GenerateForm:
    """The form of the route /generate, at `url`, whose log probs are by our definition."""

    url: str
    in_stream: ClassVar[Mapping[str, Any]] = {}

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
    version = str(about.get("weight_version"))  # "default" until it was given new weights
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
        weight_versions=[(int(version) if version.isdecimal() else 0, 0)],
    )
