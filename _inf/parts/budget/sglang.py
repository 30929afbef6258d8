"""SGLang has no budget of a thought: `scheduler.py` forces its end."""

from __future__ import annotations

import dataclasses

from _inf.backends.verl import translation
from _inf.backends.verl.sglang_format import BY_HISTORY
from _inf.parts.budget import Budget
from _inf.parts.budget.budget import with_forced
from _inf.types import Request, RequestOutput, SamplingParams

KEY = "thinking_token_budget"


class Translation(translation.Translation[Budget]):
    def sent(self, params: SamplingParams) -> dict[str, object]:
        """The arguments of a `ThinkingBudget` after the prompt."""
        if (marks := self.part.marks) is None:
            return {}
        budget = [self.part.thinking_token_budget, dataclasses.asdict(marks)]
        return {"custom_params": {KEY: budget, BY_HISTORY: True}}

    def whole(self, request: Request, output: RequestOutput) -> RequestOutput:
        return output if output.finish_reason is None else with_forced(request, output)
