"""vLLM's: from the raw logits; the first token has none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from _inf.backends.openai import translation
from _inf.parts.prompt_logprobs import PromptLogprobs, PromptScores
from _inf.parts.top_logprobs.openai import MINUS_INFINITY, likeliest
from _inf.types import Request


class Translation(translation.Translation[PromptLogprobs]):
    def __init__(self, part: PromptLogprobs, request: Request) -> None:
        super().__init__(part, request)
        self._entries: Sequence[Mapping[str, Any] | None] = ()

    def sent(self) -> dict[str, object]:
        return {"prompt_logprobs": self.part.tops}

    def take(self, choice: Mapping[str, Any], new: Sequence[int]) -> None:
        self._entries = choice.get("prompt_logprobs") or self._entries

    def record(self, ids: Sequence[int], logprobs: Sequence[float]) -> PromptScores:
        values, tops = list[float | None](), list[dict[int, float] | None]()
        for token, entry in zip(self.request.token_ids, self._entries, strict=True):
            named = {int(name): about["logprob"] for name, about in (entry or {}).items()}
            logprob = named[token] if entry else None
            impossible = logprob is not None and logprob <= MINUS_INFINITY
            values.append(-math.inf if impossible else logprob)
            tops.append(likeliest(named, self.part.tops) if entry else None)
        return PromptScores(values, tops)
