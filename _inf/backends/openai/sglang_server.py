"""SGLang's own server, read against 0.5.9: its route /generate."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from _inf.backends.openai.text import Answer
from _inf.errors import ConfigError, RequestFailure
from _inf.parts.part import values_of
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


def weight_version(about: Mapping[str, Any]) -> int:
    """The version of the weights; 0 if the server was given none."""
    said = str(about.get("weight_version"))
    return int(said) if said.isdecimal() else 0


def _sampling_params(params: SamplingParams) -> dict[str, Any]:
    if params.ignore_eos and params.stop_token_ids:
        raise ConfigError.of(
            "ignore_eos", "SGLang's server then ignores stop_token_ids too; leave one of them out."
        )
    named: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "ignore_eos": params.ignore_eos,
        "stop": list(params.stop),
        "stop_token_ids": list(params.stop_token_ids),
        "max_new_tokens": params.max_tokens,
        "min_new_tokens": params.min_tokens,
    }
    return named | values_of(params.parts)  # SGLang's names are those of the keywords


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
        weight_versions=[(weight_version(about), 0)],
    )
