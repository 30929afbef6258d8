"""vLLM's own."""

from __future__ import annotations

from _inf.backends.openai import translation
from _inf.parts.masks import Masks


class Translation(translation.Translation[Masks]):
    def sent(self) -> dict[str, object]:
        """vLLM makes the token ids of the words itself."""
        sent = super().sent()
        return {name: list(value) for name, value in sent.items()}
