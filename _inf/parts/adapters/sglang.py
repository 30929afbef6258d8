"""SGLang names an adapter `lora_path`."""

from __future__ import annotations

from _inf.backends.verl import translation
from _inf.parts.adapters import Adapter
from _inf.types import SamplingParams

KEY = "lora_path"


class Translation(translation.Translation[Adapter]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        return {KEY: self.part.adapter}
