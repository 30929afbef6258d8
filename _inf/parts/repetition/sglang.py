"""SGLang has no such end of an answer: `scheduler.py` finds it."""

from __future__ import annotations

from _inf.backends.verl import translation
from _inf.parts.repetition import Repetition
from _inf.types import SamplingParams

KEY = "repetition_detection"


class Translation(translation.Translation[Repetition]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        return {"custom_params": {KEY: self.part.repetition_detection}}
