"""SGLang has neither list: `child/masks.py` rules the tokens out."""

from __future__ import annotations

from typing import Any

from _inf.backends.verl import translation
from _inf.parts.masks import Masks

ALLOWED, BAD_WORDS = "allowed_token_ids", "bad_word_ids"


class Translation(translation.Translation[Masks]):
    def sent(self) -> dict[str, Any]:
        custom = {ALLOWED: self.part.allowed_token_ids, BAD_WORDS: self.part.word_ids}
        return {"custom_params": {name: value for name, value in custom.items() if value}}
