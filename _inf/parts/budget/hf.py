"""Forces the end of a thought."""

from __future__ import annotations

from collections.abc import Sequence

from _inf.backends.hf import translation
from _inf.parts.budget import Budget, Forced
from _inf.parts.budget.budget import budget_of
from _inf.types import ModelInfo, Request


class Translation(translation.Translation[Budget]):
    def __init__(self, part: Budget, request: Request, model: ModelInfo) -> None:
        super().__init__(part, request, model)
        self._budget = budget_of(request)

    def forced(self, ids: Sequence[int]) -> int | None:
        return self._budget.token(ids) if self._budget else None

    def record(self, ids: Sequence[int], *, whole: bool) -> Forced | None:
        places = self._budget.forced(ids) if whole and self._budget else ()
        return Forced(places) if places else None
