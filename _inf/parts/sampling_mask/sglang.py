"""`scheduler.py` puts the tokens that are left where SGLang lists the likeliest ones."""

from __future__ import annotations

from collections.abc import Mapping

from _inf.backends.verl import translation
from _inf.backends.verl.sglang_format import KEEP_FILTERED, TOP_LOGPROBS
from _inf.parts.sampling_mask import Kept, SamplingMask
from _inf.parts.top_logprobs.sglang import possible
from _inf.types import RequestOutput, SamplingParams


class Translation(translation.Translation[SamplingMask]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        return {TOP_LOGPROBS: 1, "custom_params": {KEEP_FILTERED: True}}

    def record(self, meta: Mapping[str, object], before: RequestOutput, row: int | None) -> Kept:
        return Kept(possible(meta, 0, None))
