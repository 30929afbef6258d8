"""SGLang has neither list: `scheduler.py` rules the tokens out."""

from __future__ import annotations

from _inf.backends.verl import translation
from _inf.backends.verl.sglang_format import BY_HISTORY
from _inf.parts.masks import Masks
from _inf.types import SamplingParams

ALLOWED, SHORT_WORDS, LONG_WORDS = "allowed_token_ids", "short_bad_words", "long_bad_words"


class Translation(translation.Translation[Masks]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        words = self.part.word_ids
        custom = {
            ALLOWED: self.part.allowed_token_ids,
            SHORT_WORDS: [ids for ids in words if len(ids) == 1],
            LONG_WORDS: (long := [ids for ids in words if len(ids) > 1]),
            BY_HISTORY: bool(long),
        }
        return {"custom_params": {name: value for name, value in custom.items() if value}}
