"""SGLang returns them if its server argument `enable_return_routed_experts` is set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _inf.backends.verl import translation
from _inf.parts.experts import Experts, RoutedExperts
from _inf.types import RequestOutput


class Translation(translation.Translation[RoutedExperts]):
    def record(
        self, meta: Mapping[str, Any], before: RequestOutput, row: int | None
    ) -> Experts | None:
        experts = meta.get("routed_experts")
        return None if experts is None else Experts(experts.numpy())
