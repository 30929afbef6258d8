"""Sends the adapter's name in place of the model's."""

from __future__ import annotations

from _inf.backends.openai import translation
from _inf.parts.adapters import Adapter


class Translation(translation.Translation[Adapter]):
    def sent(self) -> dict[str, object]:
        return {"model": self.part.adapter}
