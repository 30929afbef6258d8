"""SGLang names an adapter `lora_path`."""

from __future__ import annotations

from typing import Any

from _inf.backends.verl import translation
from _inf.parts.adapters import Adapter

KEY = "lora_path"


class Translation(translation.Translation[Adapter]):
    def sent(self) -> dict[str, Any]:
        return {KEY: self.part.adapter}
