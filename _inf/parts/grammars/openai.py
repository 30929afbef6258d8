"""OpenAI's `response_format` for a schema, and vLLM's `structured_outputs` for a regex."""

from __future__ import annotations

import json

from _inf.backends.openai import translation
from _inf.parts.grammars import Grammar


class Translation(translation.Translation[Grammar]):
    def sent(self) -> dict[str, object]:
        if self.part.json_schema is None:
            return {"structured_outputs": {"regex": self.part.regex}}
        schema = json.loads(self.part.json_schema)
        schema.pop("x-guidance", None)  # a key of the grammar engine that runs here
        named = {"name": "answer", "strict": True, "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
