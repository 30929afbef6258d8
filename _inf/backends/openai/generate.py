"""The form of SGLang's own route /generate, with token ids.

In: a `Request` with token ids. Out: the body to send; from the answer or its chunks a
`RequestOutput`. SGLang's log probs are by our definition. Read against sglang 0.5.9.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

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
        """The path and the body of a request."""
        return self.url, {
            "input_ids": request.token_ids,
            "sampling_params": _sampling_params(request.params),
            "return_logprob": True,
        }

    def answer(self, request: Request) -> GenerateAnswer:
        return GenerateAnswer(request)


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
    named["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()} or None
    named |= {"max_new_tokens": params.max_tokens, "min_new_tokens": params.min_tokens}
    return {name: value for name, value in named.items() if value is not None}


@dataclasses.dataclass
class GenerateAnswer:
    """An answer as far as it has arrived; each chunk has all of it."""

    request: Request
    chunk: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def finish_reason(self) -> str | None:
        """Why it ended; None while it runs."""
        reason = self.chunk["meta_info"]["finish_reason"] if self.chunk else None
        return reason["type"] if reason else None

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Replace what has arrived before."""
        self.chunk = chunk
        if self.finish_reason == "abort":
            message = chunk["meta_info"]["finish_reason"].get("message")
            raise RequestFailure(f"The server aborted the request: {message}.")

    def output(self) -> RequestOutput:
        ids, about = list(self.chunk["output_ids"]), self.chunk["meta_info"]
        reason = about["finish_reason"] or {}
        return RequestOutput(
            token_ids=ids,
            logprobs=[logprob for logprob, *_ in about["output_token_logprobs"]][: len(ids)],
            prompt_logprobs=[],
            finish_reason=self.finish_reason,
            matched_stop=reason.get("matched"),
            prompt_tokens=len(self.request.token_ids),
            completion_tokens=len(ids),
            cached_tokens=about.get("cached_tokens") or 0,
            weight_version=0,
        )
