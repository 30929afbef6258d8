"""vLLM's budget: it counts from any mark in the prompt, and gives forced tokens log probs."""

from __future__ import annotations

import dataclasses

from _inf.backends.openai import translation
from _inf.parts.budget import Budget, Forced
from _inf.parts.budget.budget import ThinkingBudget
from _inf.parts.top_logprobs import Tops
from _inf.types import RequestOutput


class Translation(translation.Translation[Budget]):
    def sent(self) -> dict[str, object]:
        return {"thinking_token_budget": self.part.thinking_token_budget}

    def corrected(self, row: RequestOutput) -> RequestOutput:
        """Give the tokens that were forced the log prob 0.0."""
        if self.part.marks is None:
            return row
        marks = dataclasses.replace(self.part.marks, turn_ends=())
        budget = ThinkingBudget(self.request.token_ids, self.part.thinking_token_budget, marks)
        places = budget.forced(row.token_ids)
        for place in places:
            row.logprobs[place] = 0.0
            if tops := row.of(Tops):
                tops.tops[place] = {row.token_ids[place]: 0.0}
        return dataclasses.replace(row, parts=(*row.parts, Forced(places))) if places else row
