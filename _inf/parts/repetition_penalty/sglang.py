"""SGLang validates it, and nothing applies it: `scheduler.py` does."""

from __future__ import annotations

from typing import Any

from _inf.backends.verl import translation
from _inf.parts.repetition_penalty import RepetitionPenalty

KEY = "repetition_penalty"


class Translation(translation.Translation[RepetitionPenalty]):
    def sent(self) -> dict[str, Any]:
        return {"custom_params": {KEY: self.part.repetition_penalty}}
