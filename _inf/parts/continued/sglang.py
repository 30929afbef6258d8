"""The ids of the first part are sent after the prompt's (`scheduler.py`)."""

from __future__ import annotations

import dataclasses

from _inf.backends.verl import translation
from _inf.backends.verl.sglang_format import KNOWN_TOKENS
from _inf.parts.continued import Continued
from _inf.turns import joined_versions
from _inf.types import Request, RequestOutput, SamplingParams


class Translation(translation.Translation[Continued]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        """The limits are those of the new tokens."""
        if not (known := len(self.part.so_far.token_ids)):
            return {}
        return {
            "max_new_tokens": params.max_tokens - known,
            "min_new_tokens": max(0, params.min_tokens - known),
            "custom_params": {KNOWN_TOKENS: known},
        }

    def whole(self, request: Request, output: RequestOutput) -> RequestOutput:
        """A failed row has no part."""
        if output.error is not None:
            return output
        known, versions = self.part.so_far, output.weight_versions if output.token_ids else []
        count = len(known.token_ids)
        return dataclasses.replace(
            output,
            token_ids=known.token_ids + output.token_ids,
            logprobs=known.logprobs + output.logprobs,
            completion_tokens=count + output.completion_tokens,
            weight_versions=joined_versions(known.weight_versions, versions, count),
        )
