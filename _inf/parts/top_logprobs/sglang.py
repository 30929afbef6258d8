"""SGLang lists the likeliest tokens; those that are named replace them in `scheduler.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _inf.backends.verl import translation
from _inf.backends.verl.sglang_format import TOP_LOGPROBS
from _inf.parts.top_logprobs import TopLogprobs, Tops
from _inf.types import RequestOutput, SamplingParams

IDS = "logprob_token_ids"
# Below it are the log probs of tokens that are ruled out: -inf, or on a GPU the smallest number of
# their type, -3.39e38 or less (`layers/sampler.py`, `_attach_logprobs_to_output`).
RULED_OUT = -3.3e38


class Translation(translation.Translation[TopLogprobs]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        if named := self.part.logprob_token_ids:
            return {TOP_LOGPROBS: 1, "custom_params": {IDS: list(named)}}
        return {TOP_LOGPROBS: self.part.logprobs}

    def record(self, meta: Mapping[str, Any], before: RequestOutput, row: int | None) -> Tops:
        known, most = before.of(Tops), self.part.logprobs
        new = possible(meta, len(before.logprobs), None if self.part.logprob_token_ids else most)
        return Tops(known.tops + new if known else new)


def possible(meta: Mapping[str, Any], start: int, most: int | None) -> list[dict[int, float]]:
    """The listed tokens, at most so many, and the sampled one, without those that a grammar or a
    bias ruled out; of the answer's tokens from `start` on."""
    tops, sampled = meta["output_top_logprobs"][start:], meta["output_token_logprobs"][start:]
    return [
        {token: value for value, token, _ in [*top[:most], drawn] if value > RULED_OUT}
        for top, drawn in zip(tops, sampled, strict=True)
    ]
