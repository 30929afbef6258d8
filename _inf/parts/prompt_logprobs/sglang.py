"""SGLang has one number for the likeliest tokens of the prompt and of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _inf.backends.rows import check_finite
from _inf.backends.verl import translation
from _inf.backends.verl.sglang_format import LOGPROB_START, TOP_LOGPROBS
from _inf.parts.prompt_logprobs import PromptLogprobs, PromptScores
from _inf.types import RequestOutput, SamplingParams


class Translation(translation.Translation[PromptLogprobs]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        return {LOGPROB_START: 0, TOP_LOGPROBS: self.part.tops}

    def record(
        self, meta: Mapping[str, Any], before: RequestOutput, row: int | None
    ) -> PromptScores:
        if (known := before.of(PromptScores)) is not None:
            return known
        logprobs = [logprob for logprob, *_ in meta.get("input_token_logprobs", ())]
        check_finite(logprobs, row)
        tops = meta.get("input_top_logprobs", ()) if (most := self.part.tops) else ()
        return PromptScores(
            logprobs,
            [
                None if top is None else {token: value for value, token, _ in top[:most]}
                for top in tops
            ],
        )


def score_params(start: int, likeliest: int, adapter: str | None) -> dict[str, object]:
    """Parameters of a prefill that returns the log probs of the prompt's tokens from `start` on."""
    return {
        "max_new_tokens": 0,
        "temperature": 1.0,
        LOGPROB_START: start - 1,
        TOP_LOGPROBS: likeliest,
        **({} if adapter is None else {"lora_path": adapter}),
    }
