"""SGLang validates it, and nothing applies it: `scheduler.py` does."""

from __future__ import annotations

from _inf.backends.verl import translation
from _inf.parts.repetition_penalty import RepetitionPenalty
from _inf.types import SamplingParams

KEY = "repetition_penalty"


class Translation(translation.Translation[RepetitionPenalty]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        return {"custom_params": {KEY: self.part.repetition_penalty}}
