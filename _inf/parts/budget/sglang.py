"""SGLang has no budget of a thought: `child/masks.py` forces its end."""

from __future__ import annotations

import dataclasses
from typing import Any

from _inf.backends.verl import translation
from _inf.parts.budget import Budget
from _inf.parts.budget.budget import with_forced
from _inf.types import Request, RequestOutput

KEY = "thinking_token_budget"


class Translation(translation.Translation[Budget]):
    def sent(self) -> dict[str, Any]:
        """The arguments of a `ThinkingBudget` after the prompt."""
        if (marks := self.part.marks) is None:
            return {}
        return {
            "custom_params": {KEY: [self.part.thinking_token_budget, dataclasses.asdict(marks)]}
        }

    def finished(self, request: Request, output: RequestOutput) -> RequestOutput:
        return with_forced(request, output)
